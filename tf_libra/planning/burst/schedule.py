"""From what a planner has decided to a plan: what happens when, and what it costs.

All times are taken from the profile again, so a plan's figures do not rest on its planner's.
"""

from dataclasses import dataclass, field

import numpy as np

from tf_libra.model.burst import BurstPlan, BurstSpan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.costs import amplification
from tf_libra.planning.burst.decisions import BlockRun, ChainRun, EdgeRun, Run


def make_schedule(
    scaling: ScalingProfile,
    run: ChainRun,
    strategy: str,
    limit: float | None,
    notes: tuple[str, ...] = (),
) -> BurstPlan:
    """Returns the plan of a decision.

    Args:
      scaling: the profile it was made for.
      run: the decision; layers from L on stand for nothing.
      strategy: the planner's name.
      limit: on amplification, which the plan repeats; None: none.
      notes: what a reader should know.
    """
    writer = _Writer(scaling)
    writer.count(run)
    writer.chain(run, (), _Devices(0, 0))
    layers = range(scaling.num_layers)
    position = np.array([writer.counts[layer] for layer in layers])
    devices = np.array(scaling.device_counts)[position]
    entering = np.zeros(len(layers))
    for span in writer.spans:
        if span.kind == "transition":
            entering[span.layer] += writer.edge_seconds(span)
    compute = scaling.compute_seconds[layers, position]
    synchronize = scaling.synchronize_seconds[layers, position]
    amplified = amplification(
        devices.astype(np.float64),
        entering,
        (compute, synchronize),
        scaling.compute_seconds[:, 0],
    )
    return BurstPlan(
        layer_names=scaling.names,
        device_counts=scaling.device_counts,
        num_devices=tuple(map(int, devices)),
        first_devices=tuple(writer.devices[layer].first for layer in layers),
        lanes=tuple(writer.devices[layer].lane for layer in layers),
        amplification=tuple(map(float, amplified)),
        iteration_seconds=max(span.stop_seconds for span in writer.spans),
        device_seconds=float((devices * (entering + compute + synchronize)).sum()),
        spans=tuple(writer.spans),
        strategy=strategy,
        max_amplification=limit,
        profile_fingerprint=scaling.fingerprint,
        notes=notes,
    )


@dataclass(frozen=True)
class _Devices:
    """A lane, and the number of its first device."""

    lane: int
    first: int


@dataclass
class _Writer:
    scaling: ScalingProfile
    counts: dict[int, int] = field(default_factory=dict)
    devices: dict[int, _Devices] = field(default_factory=dict)
    spans: list[BurstSpan] = field(default_factory=list)
    lanes: int = 1

    def __post_init__(self) -> None:
        self._edges = {edge: index for index, edge in enumerate(self.scaling.edges)}

    def count(self, run: Run | None) -> None:
        """Notes the number of devices of every layer in a run."""
        if isinstance(run, ChainRun):
            self.counts.update(zip(run.layers, run.counts, strict=True))
            for link in run.links:
                self.count(link)
        elif isinstance(run, BlockRun):
            for branch in (*run.main, *run.beside):
                self.count(branch)

    def edge_seconds(self, span: BurstSpan) -> float:
        """What a transition takes, without the rounding of its start and stop."""
        assert span.source is not None
        return self._edge(self._edges[span.source, span.layer], span.lane)

    def _edge(self, index: int, lane: int) -> float:
        source, target = self.scaling.edges[index]
        seconds = self.scaling.transition_seconds
        if any(self.devices[layer].lane != lane for layer in (source, target)):
            assert self.scaling.move_seconds is not None
            seconds = self.scaling.move_seconds
        return float(seconds[index, self.counts[source], self.counts[target]])

    def chain(self, run: ChainRun, after: tuple[int, ...], devices: _Devices) -> tuple[int, ...]:
        """Writes layers one after the other, behind `after`; returns what ends last."""
        self.devices.update(dict.fromkeys(run.layers, devices))
        after = self.link(run.links[0], after, devices)
        for layer, link in zip(run.layers, run.links[1:], strict=True):
            if layer < self.scaling.num_layers:
                position = self.counts[layer]
                for kind, times in (
                    ("compute", self.scaling.compute_seconds),
                    ("synchronize", self.scaling.synchronize_seconds),
                ):
                    seconds = float(times[layer, position])
                    after = self._write(kind, layer, None, devices, seconds, after)
            after = self.link(link, after, devices)
        return after

    def link(self, run: Run | None, after: tuple[int, ...], devices: _Devices) -> tuple[int, ...]:
        """Writes what lies between two layers, behind `after`; returns what ends last."""
        if run is None:
            return after
        if isinstance(run, ChainRun):
            return self.chain(run, after, devices)
        if isinstance(run, EdgeRun):
            if run.index < 0:
                return after
            source, target = self.scaling.edges[run.index]
            seconds = self._edge(run.index, devices.lane)
            return self._write("transition", target, source, devices, seconds, after)
        ends = after
        for branch in run.main:
            ends = self.link(branch, ends, devices)
        first = devices.first + run.allotments[0]
        for branch, allotment in zip(run.beside, run.allotments[1:], strict=True):
            apart = _Devices(self.lanes, first)
            self.lanes += 1
            ends = (*ends, *self.chain(branch, after, apart))
            first += allotment
        return tuple(dict.fromkeys(ends))

    def _write(
        self,
        kind: str,
        layer: int,
        source: int | None,
        devices: _Devices,
        seconds: float,
        after: tuple[int, ...],
    ) -> tuple[int, ...]:
        start = max((self.spans[index].stop_seconds for index in after), default=0.0)
        self.spans.append(
            BurstSpan(kind, layer, source, devices.lane, start, start + seconds, after)
        )
        return (len(self.spans) - 1,)
