"""Times of a step's phases, each run again and again in this process, without side effects."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_libra.model_parallel.capture import conditional_updates
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.execution.gradient_reduction import (
    DeferredReduction,
    GradientReduction,
    tensor_key,
)
from tf_libra.model_parallel.execution.stage_tasks import NO_OPS, SubgraphFunction, sum_key
from tf_libra.model_parallel.partition.deferred_gradients import (
    DeferredGradient,
    find_deferred_gradients,
    without_deferred,
)
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import SubgraphExtractor
from tf_libra.model_parallel.partition.update_phase import UpdatePhase

# Fewest and most repetitions, and seconds that permit more than the fewest: machine speed varies.
_FEWEST, _MOST, _LONG_ENOUGH = 3, 15, 1.0


class Repeats(NamedTuple):
    """Fewest and most repetitions; up to `_LONG_ENOUGH` seconds permit more than the fewest."""

    fewest: int = _FEWEST
    most: int = _MOST


# Repetitions of what is measured in parts.
FEW_REPEATS = Repeats(most=_FEWEST)


class MeasuredBatches(NamedTuple):
    """Batches of a step, one of which is measured.

    Attributes:
        number: number of batches, whose gradients are added.
        defers: whether large gradients are computed once for all.
        reductions: names of the reductions that may be deferred; None allows all.
    """

    number: int
    defers: bool
    reductions: frozenset[str] | None = None

    def find_deferred(self, cut: StagePartition, stage: int) -> tuple[DeferredGradient, ...]:
        """Return the gradients of a stage that are computed once."""
        found = find_deferred_gradients(cut, stage, self.number) if self.defers else ()
        allowed = self.reductions
        return tuple(each for each in found if allowed is None or each.reduction in allowed)


class PhaseTimes(NamedTuple):
    """Result of running one microbatch.

    Attributes:
        seconds: seconds of each phase.
        deferred: by stage, seconds of the gradients that are computed once for all microbatches.
        reductions: names of the reductions of these gradients.
        sums: gradient sums by the names of reductions.
    """

    seconds: list[float]
    deferred: list[float]
    reductions: frozenset[str]
    sums: dict[str, Any]


def time_phases(
    traces: SizedTraces,
    cut: StagePartition,
    size: int,
    arguments: dict[str, Any],
    batches: MeasuredBatches,
    repeats: Repeats,
) -> PhaseTimes:
    """Run each phase of a partition repeatedly, for microbatches of `size` examples.

    The phases alternate, as in a step, so that each finds the caches as other phases leave them.
    Ops that only write are left out. A writing op whose result other ops read does run, for example
    an op that reads and advances a random state. Its variables are restored afterwards.
    """
    graph, extraction = cut.graph, traces.extractor(size)
    without = {
        graph.ops[index].name for index in graph.microbatch_effects if not graph.ops[index].outputs
    }
    sent = {message.tensor for message in cut.messages}
    values: dict[str, Any] = {}
    runs: list[Callable[[], None]] = []
    late: dict[int, Callable[[], None]] = {}
    reductions: set[str] = set()
    with _restored(traces, graph, graph.microbatch_effects):
        for phase, part in enumerate(cut.subgraphs):
            stage = cut.stage_of_phase(phase)
            reducing, sums = None, {}
            if phase == cut.backward_phase(stage):
                deferred = batches.find_deferred(cut, stage)
                reductions |= {each.reduction for each in deferred}
                part = without_deferred(part, deferred)
                reducing = GradientReduction.for_stage(cut, stage, sent, deferred)
                if deferred:
                    late[stage] = _deferred_run(
                        cut, extraction, reducing, deferred, values, batches.number
                    )
                reducing = replace(reducing, accumulates=batches.number > 1)
                variables = {name: reducing.variables[name] for name in reducing.inputs}
                sums = {name: tf.zeros(v.shape, v.dtype) for name, v in variables.items()}
            ops = tuple(name for name in part.ops if name not in without)
            function = SubgraphFunction.build(extraction, replace(part, ops=ops), reducing)

            def run(function: SubgraphFunction = function, sums: dict[str, Any] = sums) -> None:
                values.update(function(arguments, values, sums))

            run()
            runs.append(run)
        for run_late in late.values():
            run_late()
        seconds = _steady_state_seconds([*runs, *late.values()], repeats)
    names = [name for reduction in cut.reductions for name in reduction]
    by_stage = dict(zip(late, seconds[len(runs) :], strict=True))
    return PhaseTimes(
        seconds[: len(runs)],
        [by_stage.get(stage, 0.0) for stage in range(cut.num_stages)],
        frozenset(reductions),
        {name: values[sum_key(name)] for name in names},
    )


def _deferred_run(
    cut: StagePartition,
    extractor: SubgraphExtractor,
    reduction: GradientReduction,
    deferred: tuple[DeferredGradient, ...],
    values: dict[str, Any],
    count: int,
) -> Callable[[], None]:
    """Return what computes a stage's deferred gradients for `count` like batches."""
    names = [each.reduction for each in deferred]
    epilogue = DeferredReduction.for_partition(
        cut, replace(reduction, names=()), names, deferred, range(count)
    )
    function = SubgraphFunction.build(extractor, NO_OPS, epilogue)

    def run() -> None:
        stored = {
            tensor_key(name, m): values[name] for name in epilogue.tensors for m in range(count)
        }
        values.update(function({}, {}, stored))

    return run


def time_update(
    traces: SizedTraces,
    arguments: dict[str, Any],
    gradients: dict[str, Any],
    repeats: Repeats,
) -> float:
    """Return the seconds of updating all variables; 0 if the update cannot be undone."""
    cut = traces.partition([0])
    graph, extraction = cut.graph, traces.extractor(traces.microbatch_size)
    ops = [graph.ops[index] for index in graph.update_effects]
    called = extraction.library([op.name for op in ops]).function
    nodes = [
        *(op.node_def for op in ops),
        *(node for function in called for node in function.node_def),
    ]
    used = {name for index in graph.update_effects for name in graph.handles[index]}
    if (
        not all(map(conditional_updates.writes_only_variables, nodes))
        or not used <= traces.captured_variables.keys()
    ):
        return 0.0
    update = UpdatePhase(cut)
    values = {f"{name}:0": gradient for name, gradient in gradients.items()}
    rounds = [
        SubgraphFunction.build(extraction, update.subgraph((0,), number))
        for number in range(update.num_rounds)
    ]

    def run() -> None:
        found = dict(values)
        for function in rounds:
            found |= function(arguments, found)

    with _restored(traces, graph, graph.update_effects):
        run()
        return _steady_state_seconds([run], repeats)[0]


@contextlib.contextmanager
def _restored(traces: SizedTraces, graph: StepGraph, writes: Sequence[int]) -> Iterator[None]:
    """Restore the variables that the ops at `writes` modify."""
    handles = {name for index in writes for name in graph.handles[index]}
    captured = traces.captured_variables.items()
    before = [(variable, variable.read_value()) for name, variable in captured if name in handles]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _steady_state_seconds(runs: Sequence[Callable[[], Any]], repeats: Repeats) -> list[float]:
    """Return the median seconds of each run; steps take the typical time, not the shortest."""
    seconds: list[list[float]] = []
    until = time.perf_counter() + _LONG_ENOUGH
    while len(seconds) < repeats.fewest or (
        len(seconds) < repeats.most and time.perf_counter() < until
    ):
        seconds.append([_timed(run) for run in runs])
    return [float(median) for median in np.median(seconds, axis=0)]


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start
