"""What a burst plan does, as tasks; and when, under a profile that need not be its own."""

from collections import Counter
from dataclasses import replace

from tf_libra import checks
from tf_libra.model.burst import BurstPlan, BurstSpan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.simulation.tasks import Task, simulate_tasks

_OF_A_LAYER = ("compute", "synchronize")


def simulate_burst(scaling: ScalingProfile, plan: BurstPlan) -> tuple[BurstSpan, ...]:
    """Returns when everything in a plan happens, with the times of a profile.

    Args:
      scaling: a profile of the plan's layers; times may be others than those planned with.
      plan: devices and lanes; its own times are not looked at.

    Raises:
      ValueError: the profile is of other layers, lacks an edge or a number of devices of the plan,
        or has no times for moving to other devices, which the plan does; or the plan leaves out
        what a layer does.
    """
    checks.instance("scaling", scaling, ScalingProfile)
    checks.instance("plan", plan, BurstPlan)
    _check_whole(scaling, plan)
    tasks = [
        Task(span.kind, span_seconds(scaling, plan, span), after=span.after) for span in plan.spans
    ]
    return tuple(
        replace(span, start_seconds=ran.start_seconds, stop_seconds=ran.stop_seconds)
        for span, ran in zip(plan.spans, simulate_tasks(tasks), strict=True)
    )


def _check_whole(scaling: ScalingProfile, plan: BurstPlan) -> None:
    """Checks that every layer computes and synchronizes, and takes what every edge brings, once."""
    wanted: list[tuple[str, int, int | None]]
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
    """Returns how long a span of a plan takes by a profile; raises as `simulate_burst`."""
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
            raise ValueError("move_seconds must be given: the plan has branches beside others")
        times = scaling.move_seconds
    edge = scaling.edges.index((span.source, span.layer))
    return float(times[edge, scaling.index(plan.num_devices[span.source]), position])
