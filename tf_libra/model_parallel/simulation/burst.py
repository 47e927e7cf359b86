"""Simulation of a burst plan as tasks, with the times of any profile of its layers."""

from collections import Counter
from dataclasses import replace

from tf_libra.internal import validation
from tf_libra.simulation.event_simulator import Task, simulate_tasks
from tf_libra.specs.burst import BurstPlan, BurstSpan, SpanKind
from tf_libra.specs.scaling_profile import ScalingProfile

_OF_A_LAYER: tuple[SpanKind, ...] = ("compute", "synchronize")


def simulate_burst(scaling: ScalingProfile, plan: BurstPlan) -> tuple[BurstSpan, ...]:
    """Return the spans of a plan with the times of a profile.

    Args:
      scaling: profile of the plan's layers; its times may differ from those of planning.
      plan: devices and branches; its own times are ignored.

    Raises:
      ValueError: the profile has other layers or lacks an edge, a device count or the time of a
        transition that the plan needs; or the plan lacks a span of a layer.
    """
    validation.instance("scaling", scaling, ScalingProfile)
    validation.instance("plan", plan, BurstPlan)
    _check_whole(scaling, plan)
    tasks = [
        Task(span.kind, span_seconds(scaling, plan, span), after=span.after) for span in plan.spans
    ]
    return tuple(
        replace(span, start_seconds=ran.start_seconds, stop_seconds=ran.stop_seconds)
        for span, ran in zip(plan.spans, simulate_tasks(tasks), strict=True)
    )


def _check_whole(scaling: ScalingProfile, plan: BurstPlan) -> None:
    """Check that every layer has one compute and one synchronize span, and every edge one span."""
    wanted: list[tuple[SpanKind, int, int | None]]
    wanted = [(kind, layer, None) for layer in range(len(plan.layer_names)) for kind in _OF_A_LAYER]
    if scaling.names == plan.layer_names:
        wanted += [("transition", target, source) for source, target in scaling.edges]
    times = Counter((span.kind, span.layer, span.source) for span in plan.spans)
    for kind, layer, source in wanted:
        if times[kind, layer, source] != 1:
            origin = "" if source is None else f" from {plan.layer_names[source]!r}"
            raise ValueError(
                f"spans must hold one {kind} of layer {plan.layer_names[layer]!r}{origin}, got"
                f" {times[kind, layer, source]}"
            )


def span_seconds(scaling: ScalingProfile, plan: BurstPlan, span: BurstSpan) -> float:
    """Return the seconds of a plan's span by a profile; raises the errors of `simulate_burst`."""
    if scaling.names != plan.layer_names:
        raise ValueError(
            f"plan must be of the profile's {len(scaling.names)} layers (same names, in the same "
            f"order), got one of {len(plan.layer_names)} layers"
        )
    position = scaling.index(plan.num_devices[span.layer])
    if span.source is None:
        of_kind = {"compute": scaling.compute_seconds, "synchronize": scaling.synchronize_seconds}
        return float(of_kind[span.kind][span.layer, position])
    if (span.source, span.layer) not in scaling.edges:
        raise ValueError(f"edges must hold {(span.source, span.layer)}, which the plan follows")
    times = scaling.transition_seconds
    if any(plan.lanes[layer] != span.lane for layer in (span.source, span.layer)):
        if scaling.move_seconds is None:
            raise ValueError("move_seconds must be given: the plan has concurrent branches")
        times = scaling.move_seconds
    edge = scaling.edges.index((span.source, span.layer))
    return float(times[edge, scaling.index(plan.num_devices[span.source]), position])
