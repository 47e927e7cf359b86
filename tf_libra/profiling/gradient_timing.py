"""Gradient timing: when backward starts and each gradient is produced, from op events.

Pure functions of events, without TensorFlow.
"""

import bisect
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tf_libra.profiling.events import Events
from tf_libra.specs.backward_profile import BackwardProfile

# Scope of the ops of tf.GradientTape. Inlined calls (StatefulPartitionedCall/), loops
# (while/body/_1/) and Grappler rewrites add prefixes.
_BACKWARD_SCOPE = "gradient_tape/"


class IncompleteTraceError(ValueError):
    """The events of a step do not show when its gradients were produced."""


@dataclasses.dataclass(frozen=True, eq=False)
class Productions:
    """Production times of the gradients of one step.

    Attributes:
      names: tensor names, in the caller's order.
      produced_ns: int64 array (tensors,), CLOCK_REALTIME nanoseconds.
      inferred: source of the time of each tensor whose producer has no event.
    """

    names: tuple[str, ...]
    produced_ns: np.ndarray
    inferred: Mapping[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class StepProduction(Productions):
    """Production times of one step, with the start of backward.

    Attributes:
      backward_start_ns: start of the first backward op.
      used_ns: first use of each tensor's weight in the forward pass, the start of backward if it
        is unknown; int64 array (tensors,). None if no use is known.
    """

    backward_start_ns: int
    used_ns: np.ndarray | None = None

    @property
    def offset_seconds(self) -> np.ndarray:
        """Production times in seconds since the start of backward, shape (tensors,), >= 0."""
        return np.maximum(self.produced_ns - self.backward_start_ns, 0) * 1e-9

    @property
    def before_seconds(self) -> np.ndarray:
        """Seconds from the first uses of weights to the start of backward, >= 0; zeros if unknown.

        Shape (tensors,).
        """
        if self.used_ns is None:
            return np.zeros(len(self.names))
        return np.maximum(self.backward_start_ns - self.used_ns, 0) * 1e-9

    def with_uses(self, used_ns: Mapping[str, int]) -> "StepProduction":
        """Returns the step with the first uses of weights, by tensor."""
        start_ns = self.backward_start_ns
        each = [used_ns.get(name, start_ns) for name in self.names]
        return dataclasses.replace(self, used_ns=np.array(each, np.int64) if used_ns else None)

    @property
    def last_ns(self) -> int:
        """Production time of the last gradient: the end of backward computation."""
        return int(self.produced_ns.max())


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredProfile:
    """Profile with the statistics of its measurement.

    Attributes:
      profile: medians over the steps, in backward order.
      spread_seconds: float array (tensors,), interquartile range over the steps of each production
        time.
      num_steps: number of used steps.
      num_in_order: number of used steps that produced the tensors in the profile's order.
        TensorFlow's executor guarantees no order; if this is less than `num_steps`, the order
        varies.
      dropped: (index in `steps`, reason) of every unused step.
      inferred: source of the time of each tensor whose production was never seen directly.
    """

    profile: BackwardProfile
    spread_seconds: np.ndarray
    num_steps: int
    num_in_order: int
    dropped: tuple[tuple[int, str], ...]
    inferred: Mapping[str, str]


def production_times(
    events: Events,
    producers: Mapping[str, str],
    window: tuple[int, int],
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> Productions:
    """Finds the production time of each gradient: the end of the op that produces it.

    A producer may have no event: the executor does not trace cheap ops, and Grappler and oneDNN
    fuse or rename nodes. The time of its tensor is inferred, and listed in `inferred`:

    - If `inputs` knows the node: the end of the last of its nearest traced ancestors, since a cheap
      op takes no time. Without traced ancestors, as for a constant: the start of the window.
    - Otherwise: the later of its nearest neighbours in `producers` whose time is known.

    Args:
      events: op events of one or more steps.
      producers: tensor name to node name, in backward order as far as the caller knows it.
      window: (start_ns, stop_ns) of the step.
      inputs: node name to the names of its data inputs, from the executed graph.

    Raises:
      ValueError: `producers` is empty.
      IncompleteTraceError: no producer and no ancestor of one has an event in the window, or a
        producer has several events, so the window holds several steps.
    """
    if not producers:
        raise ValueError("producers must name at least one tensor, got none")
    _, seen, num_runs = events.runs_within(window)
    known: dict[str, int] = {}
    inferred: dict[str, str] = {}
    any_seen = False
    for tensor, node in producers.items():
        if node in seen:
            if num_runs[node] > 1:
                raise IncompleteTraceError(
                    f"{node}, which produces {tensor}, ran {num_runs[node]} times in the window"
                )
            known[tensor] = seen[node]
            any_seen = True
        elif inputs is not None and node in inputs:
            ancestors = nearest_traced(node, inputs, seen)
            if ancestors:
                last = max(ancestors, key=lambda name: (seen[name], name))
                known[tensor] = seen[last]
                inferred[tensor] = f"{node} has no event: when its ancestor {last} ended"
                any_seen = True
            else:
                known[tensor] = window[0]
                inferred[tensor] = f"{node} has no event, nor any ancestor: there from the start"
    if not any_seen:
        raise IncompleteTraceError("no producer of a gradient has an event in the window")

    names = tuple(producers)
    resolved = [i for i, tensor in enumerate(names) if tensor in known]
    produced_ns = np.empty(len(names), dtype=np.int64)
    for i, tensor in enumerate(names):
        later = tensor
        if tensor not in known:
            right = bisect.bisect(resolved, i)
            neighbours = [names[j] for j in resolved[max(right - 1, 0) : right + 1]]
            later = max(neighbours, key=lambda name: known[name])
            inferred[tensor] = f"{producers[tensor]} has no event: with its neighbour {later}"
        produced_ns[i] = known[later]
    return Productions(names, produced_ns, inferred)


def select_producers(
    events: Events,
    candidates: Mapping[str, Sequence[str]],
    window: tuple[int, int],
    inputs: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Returns the node that produced each gradient, among one per branch of a conditional.

    If no candidate has an event, for example since all are cheap, the node is chosen whose nearest
    traced ancestors ended last: the branch that was not taken left no events.

    Args:
      events: as for `production_times`.
      candidates: tensor name to the names of nodes.
      window: as for `production_times`.
      inputs: as for `production_times`.

    Raises:
      IncompleteTraceError: several candidates ran, as in a graph of several steps.
    """
    seen = events.runs_within(window).last_ns

    def latest_before(node: str) -> int:
        ancestors = nearest_traced(node, inputs, seen) if node in inputs else []
        return max((seen[name] for name in ancestors), default=window[0])

    chosen: dict[str, str] = {}
    for tensor, nodes in candidates.items():
        ran = [node for node in nodes if node in seen] if len(nodes) > 1 else [*nodes]
        if len(ran) > 1:
            raise IncompleteTraceError(f"{ran[0]} and {ran[1]}, which produce {tensor}, both ran")
        chosen[tensor] = ran[0] if ran else max(nodes, key=latest_before)
    return chosen


def backward_start(events: Events, window: tuple[int, int], first_production_ns: int) -> int:
    """Finds the start of backward computation.

    Backward ops stand under `gradient_tape/` at any depth. The first of them is not always the
    start: ops that depend on shapes alone may run during forward, and small forward ops (metrics)
    after the start of backward. The start chosen among the backward ops before the first production
    separates both best: it has the least time in backward ops before it and in other ops after it.
    The earliest wins a tie.

    Args:
      events: op events.
      window: (start_ns, stop_ns) of the step.
      first_production_ns: production time of the first gradient.

    Raises:
      IncompleteTraceError: no backward op starts before the first production.
    """
    inside = events.within(window)
    scoped = np.array([_BACKWARD_SCOPE in name for name in events.node_names], dtype=bool)
    early = np.flatnonzero(inside.start_ns < first_production_ns)
    early = early[np.argsort(inside.start_ns[early], kind="stable")]
    start_ns = inside.start_ns[early]
    duration_ns = inside.end_ns[early] - start_ns
    is_backward = scoped[inside.node[early]]
    if not is_backward.any():
        raise IncompleteTraceError("no backward op has an event before the first production")
    backward_before = np.cumsum(np.where(is_backward, duration_ns, 0)) - duration_ns
    others_after = np.cumsum(np.where(is_backward, 0, duration_ns)[::-1])[::-1]
    candidates = np.flatnonzero(is_backward)
    best = candidates[np.argmin((backward_before + others_after)[candidates])]
    return int(start_ns[best])


def step_production(
    events: Events,
    producers: Mapping[str, str],
    window: tuple[int, int],
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> StepProduction:
    """Returns the production times of one step and the start of its backward computation.

    Arguments and errors are those of `production_times` and `backward_start`.
    """
    productions = production_times(events, producers, window, inputs)
    direct = [name not in productions.inferred for name in productions.names]
    # Constants count as produced at the start of the window and are not the first production.
    seen_ns = productions.produced_ns[direct] if any(direct) else productions.produced_ns
    start_ns = backward_start(events, window, int(seen_ns[seen_ns > window[0]].min()))
    return StepProduction(
        productions.names, productions.produced_ns, productions.inferred, start_ns
    )


def measured_profile(
    steps: Sequence[StepProduction],
    num_bytes: Mapping[str, int],
    min_steps: int = 3,
    dtypes: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
) -> MeasuredProfile:
    """Builds a profile from steps that communicated after backward, so free of contention.

    A tensor's time is the median over the steps of its production time, in seconds since the start
    of backward. Tensors are ordered by this time, ties as in `steps[0].names`; `compute_seconds`
    are the differences, and `forward_seconds` follow from the first uses of weights. A step is
    dropped if it only infers the production of a tensor that most steps saw.

    Args:
      steps: at least `min_steps` steps of the same tensors in the same order.
      num_bytes: size of each tensor.
      min_steps: least number of usable steps.
      dtypes: dtype name of each tensor, if known.
      order: names of the tensors in the order of the profile; a tensor that was produced before its
        predecessor counts as produced with it. None: the order of production.

    Raises:
      ValueError: no steps, steps of different tensors, or a missing size.
      IncompleteTraceError: fewer than `min_steps` steps are usable.
    """
    if min_steps < 1:
        raise ValueError(f"min_steps must be at least 1, got {min_steps}")
    if len(steps) < min_steps:
        raise IncompleteTraceError(f"{len(steps)} steps were traced, at least {min_steps} needed")
    names = steps[0].names
    for index, step in enumerate(steps):
        if step.names != names:
            raise ValueError(f"steps[{index}] has other tensors than steps[0], or another order")
    missing = [name for name in names if name not in num_bytes]
    if missing:
        raise ValueError(f"num_bytes lacks {missing[0]!r} and {len(missing) - 1} more")

    times_inferred = Counter(name for step in steps for name in step.inferred)
    rarely_seen = {name for name, times in times_inferred.items() if 2 * times >= len(steps)}
    used: list[StepProduction] = []
    dropped: list[tuple[int, str]] = []
    for index, step in enumerate(steps):
        lacking = [name for name in step.inferred if name not in rarely_seen]
        if lacking:
            dropped.append((index, f"{lacking[0]}: {step.inferred[lacking[0]]}"))
        else:
            used.append(step)
    if len(used) < min_steps:
        reasons = "; ".join(f"step {index}: {reason}" for index, reason in dropped)
        raise IncompleteTraceError(
            f"{len(used)} of {len(steps)} steps are usable, at least {min_steps} needed ({reasons})"
        )

    offsets = np.stack([step.offset_seconds for step in used])
    medians = np.median(offsets, axis=0)
    spread = np.subtract(*np.percentile(offsets, [75, 25], axis=0))
    if order is None:
        positions = np.argsort(medians, kind="stable")
    else:
        positions = np.array([names.index(name) for name in order])
        medians[positions] = np.maximum.accumulate(medians[positions])
    ordered = [names[i] for i in positions]
    profile = BackwardProfile.from_arrays(
        [num_bytes[name] for name in ordered],
        np.diff(medians[positions], prepend=0.0),
        ordered,
        None if dtypes is None else [dtypes[name] for name in ordered],
        forward_seconds=_forward_seconds(used, positions),
    )
    inferred = {
        name: next(step.inferred[name] for step in used if name in step.inferred)
        for name in ordered
        if any(name in step.inferred for step in used)
    }
    return MeasuredProfile(
        profile=profile,
        spread_seconds=spread[positions],
        num_steps=len(used),
        num_in_order=int((np.diff(offsets[:, positions], axis=1) >= 0).all(axis=1).sum()),
        dropped=tuple(dropped),
        inferred=inferred,
    )


def _forward_seconds(steps: Sequence[StepProduction], positions: np.ndarray) -> np.ndarray:
    """Returns the median forward computation from each weight's first use to the next one's.

    Weights are gathered in forward order. So one that is used before an earlier one in this order
    has the earlier one gathered by then, too.

    Args:
      steps: steps of the same tensors.
      positions: the tensors in backward order.
    """
    before = np.median(np.stack([step.before_seconds for step in steps]), axis=0)[positions]
    return np.diff(np.maximum.accumulate(before), prepend=0.0)


def nearest_traced(
    node: str, inputs: Mapping[str, Sequence[str]], traced: Mapping[str, int]
) -> list[str]:
    """Returns the nearest traced nodes on every path of data inputs that leads to `node`."""
    found: list[str] = []
    visited = {node}
    pending = list(inputs[node])
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in traced:
            found.append(name)
        else:
            pending.extend(inputs.get(name, ()))
    return found
