"""Schedule and costs of a burst planner's decision.

A device runs one span at a time. Layers of a lane are sequential. Transitions into a layer are
sequential and begin when all of its input lanes have ended. All times come from the profile, so
plans of all planners have comparable costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.costs import amplification
from tf_libra.model_parallel.planning.burst.strategy import BlockRun, ChainRun, EdgeRun, Run
from tf_libra.model_parallel.simulation.burst import simulate_burst, span_seconds
from tf_libra.specs.burst import BurstPlan, BurstSpan, SpanKind
from tf_libra.specs.scaling_profile import ScalingProfile

# Indices of spans or of edges.
Numbers = tuple[int, ...]


def make_schedule(
    scaling: ScalingProfile,
    run: ChainRun,
    strategy: str,
    limit: float | None,
    notes: tuple[str, ...] = (),
) -> BurstPlan:
    """Return the plan of a decision.

    Args:
      scaling: profile that the decision was made for.
      run: the decision; layers from L on have no cost.
      strategy: name of the planner.
      limit: limit on amplification, stored in the plan; None: no limit.
      notes: sentences for the plan's notes.
    """
    at: dict[int, int] = {}
    _count(run, at)
    layers = range(scaling.num_layers)
    position = np.array([at[layer] for layer in layers])
    writer = _Writer(scaling, position)
    writer.chain(run, (), _Devices(0, 0))
    amplified, device_seconds = _costs(scaling, position, writer.entering)
    return BurstPlan(
        layer_names=scaling.names,
        device_counts=scaling.device_counts,
        num_devices=tuple(scaling.device_counts[index] for index in position),
        first_devices=tuple(writer.devices[layer].first for layer in layers),
        lanes=tuple(writer.devices[layer].lane for layer in layers),
        amplification=amplified,
        iteration_seconds=max(span.stop_seconds for span in writer.spans),
        device_seconds=device_seconds,
        spans=tuple(writer.spans),
        strategy=strategy,
        max_amplification=limit,
        profile_fingerprint=scaling.fingerprint,
        notes=notes,
    )


def reschedule(scaling: ScalingProfile, plan: BurstPlan) -> BurstPlan:
    """Return a plan with the same decision and another profile's schedule and costs.

    Args:
      scaling: profile of the plan's layers.
      plan: source of devices, lanes and order.

    Raises:
      ValueError: as `simulate_burst`.
    """
    spans = simulate_burst(scaling, plan)
    position = np.array([scaling.index(count) for count in plan.num_devices])
    entering = [0.0] * scaling.num_layers
    for span in spans:
        if span.kind == "transition":
            entering[span.layer] += span_seconds(scaling, plan, span)
    amplified, device_seconds = _costs(scaling, position, entering)
    return replace(
        plan,
        spans=spans,
        iteration_seconds=max(span.stop_seconds for span in spans),
        amplification=amplified,
        device_seconds=device_seconds,
        profile_fingerprint=scaling.fingerprint,
    )


def _costs(
    scaling: ScalingProfile, position: NDArray[np.intp], entering: Sequence[float]
) -> tuple[tuple[float, ...], float]:
    """Return the amplification of each layer and the total device seconds.

    Args:
      scaling: the profile.
      position: position of each layer's device count, shape [L].
      entering: seconds of each layer's transitions, without the rounding of start and stop times.
    """
    transitions = np.array(entering)
    layers = np.arange(scaling.num_layers)
    devices = np.array(scaling.device_counts, np.float64)[position]
    own = scaling.compute_seconds[layers, position], scaling.synchronize_seconds[layers, position]
    amplified = amplification(devices, transitions, own, scaling.compute_seconds[:, 0])
    occupied = float((devices * (transitions + own[0] + own[1])).sum())
    return tuple(amplified.tolist()), occupied


@dataclass(frozen=True)
class _Devices:
    """Lane and the number of its first device."""

    lane: int
    first: int


def _count(run: Run | None, at: dict[int, int]) -> None:
    """Collect the position of every layer's device count in a run."""
    if isinstance(run, ChainRun):
        at.update(zip(run.layers, run.counts, strict=True))
        for link in run.links:
            _count(link, at)
    elif isinstance(run, BlockRun):
        for branch in (*run.main, *run.parallel):
            _count(branch, at)


class _Writer:
    """Builder of a schedule's spans.

    Attributes:
      devices: devices of the layers whose lane has begun.
      spans: spans so far.
      entering: seconds of transitions into each layer so far.
      lanes: number of lanes.
    """

    def __init__(self, scaling: ScalingProfile, position: NDArray[np.intp]) -> None:
        """Look up all times at the position of each layer's device count, shape [L]."""
        self.devices: dict[int, _Devices] = {}
        self.spans: list[BurstSpan] = []
        self.entering = [0.0] * scaling.num_layers
        self.lanes = 1
        self._edges = scaling.edges
        layers = np.arange(scaling.num_layers)
        self._compute = scaling.compute_seconds[layers, position].tolist()
        self._synchronize = scaling.synchronize_seconds[layers, position].tolist()
        sources, targets = position[np.array(scaling.edges, np.intp).reshape(-1, 2).T]
        edges = np.arange(len(scaling.edges))
        self._transition = scaling.transition_seconds[edges, sources, targets].tolist()
        moves = scaling.move_seconds
        self._move = [] if moves is None else moves[edges, sources, targets].tolist()

    def chain(self, run: ChainRun, after: Numbers, devices: _Devices) -> tuple[Numbers, Numbers]:
        """Add sequential layers after the spans `after`.

        Returns:
          The last spans, and the outgoing edges whose transitions are not added yet.
        """
        self.devices.update(dict.fromkeys(run.layers, devices))
        after, edges = self.link(run.links[0], after, devices)
        for layer, link in zip(run.layers, run.links[1:], strict=True):
            if layer < len(self.entering):
                after = self._layer(layer, edges, devices.lane, after)
            after, edges = self.link(link, after, devices)
        return after, edges

    def link(self, run: Run | None, after: Numbers, devices: _Devices) -> tuple[Numbers, Numbers]:
        """Add the spans between two layers after the spans `after`; returns as `chain`."""
        if run is None:
            return after, ()
        if isinstance(run, ChainRun):
            return self.chain(run, after, devices)
        if isinstance(run, EdgeRun):
            return after, () if run.index < 0 else (run.index,)
        ends, edges = after, Numbers()
        for branch in run.main:
            ends, entering = self.link(branch, ends, devices)
            edges += entering
        first = devices.first + run.allotments[0]
        for branch, allotment in zip(run.parallel, run.allotments[1:], strict=True):
            apart = _Devices(self.lanes, first)
            self.lanes += 1
            parallel, entering = self.chain(branch, after, apart)
            ends, edges = ends + parallel, edges + entering
            first += allotment
        return tuple(dict.fromkeys(ends)), edges

    def _layer(self, layer: int, edges: Numbers, lane: int, after: Numbers) -> Numbers:
        """Add a layer, preceded by its sequential incoming transitions, on its devices."""
        for edge in edges:
            source, _ = self._edges[edge]
            times = self._transition if self.devices[source].lane == lane else self._move
            after = self._write("transition", layer, source, lane, times[edge], after)
            self.entering[layer] += times[edge]
        after = self._write("compute", layer, None, lane, self._compute[layer], after)
        return self._write("synchronize", layer, None, lane, self._synchronize[layer], after)

    def _write(
        self,
        kind: SpanKind,
        layer: int,
        source: int | None,
        lane: int,
        seconds: float,
        after: Numbers,
    ) -> Numbers:
        start = max([self.spans[index].stop_seconds for index in after], default=0.0)
        self.spans.append(BurstSpan(kind, layer, source, lane, start, start + seconds, after))
        return (len(self.spans) - 1,)
