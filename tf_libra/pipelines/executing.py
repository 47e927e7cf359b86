"""Runs one rank's part of a step: its stage of every microbatch, then its part of the update."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model.pipeline import PipelinePlan
from tf_libra.pipelines.axes import Axes
from tf_libra.pipelines.cutting import Cut, Message
from tf_libra.pipelines.extracting import Extraction
from tf_libra.pipelines.returning import Returned, resized
from tf_libra.pipelines.shares import Range, Shares
from tf_libra.pipelines.transport import Transport
from tf_libra.pipelines.updating import Update

Values = dict[str, Any]


@dataclass(frozen=True)
class Executed:
    """When one rank computed a microbatch, in seconds since its step began.

    Attributes:
        kind: "forward" or "backward".
        microbatch: which.
        start_seconds: when all that it needs was there.
        stop_seconds: when it had ended.
    """

    kind: str
    microbatch: int
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True)
class _Piece:
    """What one rank of a stage sends to one of another, of a tensor of a microbatch."""

    rank: int
    own: Range  # of the tensor of this rank, along its axis
    weight: float


class _Exchange(NamedTuple):
    """What one rank sends, or receives, of a tensor in every microbatch."""

    message: Message
    axis: int | None
    pieces: tuple[_Piece, ...]


class Execution:
    """A step under a plan, on one rank.

    Attributes:
        stage: that of this rank.
        executed: what the last step computed when.
    """

    def __init__(
        self,
        cut: Cut,
        plan: PipelinePlan,
        axes: Axes,
        samples_per_rank: int,
        transport: Transport,
    ) -> None:
        """Makes the functions that the rank needs.

        Args:
            cut: the step, traced for the samples of a microbatch that this rank computes.
            plan: who computes what.
            axes: of the same trace.
            samples_per_rank: how many samples each rank passes.
            transport: reaches the other ranks.

        Raises:
            ValueError: the plan cannot be executed with such batches, or not with this step.
        """
        self._cut = cut
        self._plan = plan
        self._axes = axes
        self._transport = transport
        self._shares = Shares(plan, samples_per_rank)
        self.stage, self._replica = place_of(plan, transport.rank)
        self._ranks = plan.stages[self.stage].devices
        self._update = Update(cut)
        self._batch_axes = {
            name: axes.of(f"{name}:0")
            for name in cut.graph.arguments
            if cut.tensor(f"{name}:0").shape.rank != 0
        }
        check_plan(cut, plan, axes)
        self._returned = {one.name: Returned.of(cut, axes, one) for one in _returned(cut)}
        extraction = Extraction(cut.graph.recording.concrete)
        self._functions = {
            kind: _Function.of(extraction, cut.parts[phase])
            for kind, phase in (
                ("forward", cut.forward(self.stage)),
                ("backward", cut.backward(self.stage)),
            )
        }
        self._updates = [
            _Function.of(extraction, self._update.part(self.stage, number))
            for number in range(self._update.num_rounds)
        ]
        phases = (cut.forward(self.stage), cut.backward(self.stage))
        self._sent = {
            phase: [self._exchange_of(m, sends=True) for m in cut.messages if m.sent_in == phase]
            for phase in phases
        }
        self._received = {
            phase: [
                self._exchange_of(m, sends=False)
                for m in cut.messages
                if m.needed_in == phase and m.target == self.stage
            ]
            for phase in phases
        }
        self.executed: tuple[Executed, ...] = ()

    @property
    def variables(self) -> dict[str, int]:
        """By placeholder of a variable, its stage; those that every rank has are missing."""
        return self._update.variables

    def step(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs a step.

        Args:
            arguments: the tensors that this rank passes, in the order of the trace's inputs.

        Returns:
            What the step returns, of the whole batch, as a flat list.
        """
        began = time.perf_counter()
        given = dict(zip(self._cut.graph.arguments, arguments, strict=True))
        batches = self._distribute(given)
        kept: list[Values] = [{} for _ in range(self._plan.num_microbatches)]
        outputs: list[Values] = [{} for _ in kept]
        sums: Values = {}
        executed = []
        for kind, microbatch in self._plan.stages[self.stage].order:
            values = kept[microbatch]
            phase = self._phase(kind)
            self._receive(phase, microbatch, values)
            start = time.perf_counter()
            values |= self._functions[kind](batches[microbatch], values)
            executed.append(Executed(kind, microbatch, start - began, time.perf_counter() - began))
            self._send(phase, microbatch, values)
            for name in self._returned:
                if name in values and self._is_made_in(name, phase):
                    outputs[microbatch][name] = values[name]
            if kind == "backward":
                for name in self._cut.variables[self.stage]:
                    value = values[self._gradient(name)]
                    sums[name] = value if name not in sums else sums[name] + value
                kept[microbatch] = {}
        self.executed = tuple(executed)
        returned = self._collect(outputs)
        returned |= self._updated(self._averages(sums), given)
        return [returned[one.name] for one in self._cut.graph.returned]

    def _phase(self, kind: str) -> int:
        cut = self._cut
        return cut.forward(self.stage) if kind == "forward" else cut.backward(self.stage)

    def _gradient(self, reduction: str) -> str:
        return str(self._cut.graph.gradients[reduction].name)

    def _is_made_in(self, name: str, phase: int) -> bool:
        return self._cut.phase_of(self._cut.tensor(name)) == phase

    # Samples.

    def _distribute(self, given: Values) -> list[Values]:
        """Sends samples to who needs them; by microbatch, the arguments that this rank needs."""
        count = self._plan.num_microbatches
        found: list[Values] = [{} for _ in range(count)]
        own = self._transport.rank
        passed = self._shares.passed(own)
        for name, axis in self._batch_axes.items():
            for stage, members in enumerate(self._plan.stages):
                if not self._needs(stage, name):
                    continue
                for replica, rank in enumerate(members.devices):
                    parts = [
                        _slice(given[name], axis, passed, self._of(stage, replica, m) & passed)
                        for m in range(count)
                        if (self._of(stage, replica, m) & passed).size
                    ]
                    if rank != own and parts:
                        self._transport.send(_joined(parts, axis), rank, f"argument {name}")
        for name in self._cut.graph.arguments:
            if not self._needs(self.stage, name):
                continue
            if name not in self._batch_axes:
                for values in found:
                    values[name] = given[name]
                continue
            self._gather(name, given[name], found)
        return found

    def _gather(self, name: str, given: Any, found: list[Values]) -> None:
        axis = self._batch_axes[name]
        assert axis is not None
        wanted = [self._of(self.stage, self._replica, m) for m in range(len(found))]
        parts: list[list[Any]] = [[] for _ in found]
        for rank in range(self._plan.num_devices):
            passed = self._shares.passed(rank)
            sizes = [(one & passed).size for one in wanted]
            if not any(sizes):
                continue
            if rank == self._transport.rank:
                for own, one in zip(parts, wanted, strict=True):
                    if (one & passed).size:
                        own.append(_slice(given, axis, passed, one & passed))
                continue
            shape = resized(given.shape, axis, sum(sizes))
            joined = self._transport.receive(given.dtype, shape, rank, f"argument {name}")
            start = 0
            for own, size in zip(parts, sizes, strict=True):
                if size:
                    whole = Range(0, sum(sizes))
                    own.append(_slice(joined, axis, whole, Range(start, start + size)))
                start += size
        for values, own in zip(found, parts, strict=True):
            values[name] = _joined(own, axis)

    def _of(self, stage: int, replica: int, microbatch: int) -> Range:
        return self._shares.computed(stage, replica, microbatch)

    def _needs(self, stage: int, argument: str) -> bool:
        phases = (self._cut.forward(stage), self._cut.backward(stage))
        return any(argument in self._cut.parts[phase].arguments for phase in phases)

    # What stages send each other.

    def _exchange_of(self, message: Message, sends: bool) -> _Exchange:
        pieces = self._pieces(message, self._replica, sends)
        return _Exchange(message, self._axis(message), tuple(pieces))

    def _send(self, phase: int, microbatch: int, values: Values) -> None:
        for message, axis, pieces in self._sent[phase]:
            tensor = values[message.tensor]
            for piece in pieces:
                part = tensor
                if axis is not None:
                    part = _slice(tensor, axis, Range(0, tensor.shape[axis]), piece.own)
                self._transport.send(part, piece.rank, f"{message.tensor} {microbatch}")

    def _receive(self, phase: int, microbatch: int, values: Values) -> None:
        for message, axis, pieces in self._received[phase]:
            tensor = self._cut.tensor(message.tensor)
            parts = []
            for piece in pieces:
                shape = tensor.shape.as_list()
                if axis is not None:
                    shape[axis] = piece.own.size
                part = self._transport.receive(
                    tensor.dtype, shape, piece.rank, f"{message.tensor} {microbatch}"
                )
                parts.append(
                    part if piece.weight == 1 else part * tf.cast(piece.weight, part.dtype)
                )
            if axis is not None:
                values[message.tensor] = _joined(parts, axis)
            else:
                values[message.tensor] = parts[0] if len(parts) == 1 else tf.add_n(parts)

    def _axis(self, message: Message) -> int | None:
        if self._is_one_to_one(message):
            return None
        return self._axes.of(message.tensor)

    def _is_one_to_one(self, message: Message) -> bool:
        stages = self._plan.stages
        return len(stages[message.source].devices) == len(stages[message.target].devices)

    def _pieces(self, message: Message, replica: int, sends: bool) -> list[_Piece]:
        """With whom this replica exchanges what of a message; ranges are of its own tensor."""
        here, there = message.source, message.target
        if not sends:
            here, there = there, here
        ranks = self._plan.stages[there].devices
        if self._is_one_to_one(message):
            return [_Piece(ranks[replica], Range(0, 0), 1.0)]
        own = self._of(here, replica, 0)
        sources = len(self._plan.stages[message.source].devices)
        targets = len(self._plan.stages[message.target].devices)
        axis = self._axes.of(message.tensor)
        is_gradient = message.sent_in >= self._cut.num_stages
        is_floating = self._cut.tensor(message.tensor).dtype.is_floating
        pieces = []
        for other, rank in enumerate(ranks):
            common = own & self._of(there, other, 0)
            if not common.size:
                continue
            if axis is None:
                weight = common.size / self._shares.size_in(message.target)
                # What is no average is the same everywhere.
                pieces.append(_Piece(rank, Range(0, 0), weight if is_floating else 1.0))
                continue
            # A loss is a mean over samples: each weighs more where there are fewer.
            weight = targets / sources if is_gradient and is_floating else 1.0
            per_sample = self._cut.tensor(message.tensor).shape[axis] // own.size
            start = (common.start - own.start) * per_sample
            pieces.append(_Piece(rank, Range(start, start + common.size * per_sample), weight))
        return pieces

    # What the step returns of microbatches.

    def _collect(self, outputs: list[Values]) -> Values:
        """What is returned of the whole batch, on every rank."""
        found: Values = {}
        own = self._transport.rank
        for name, returned in self._returned.items():
            stage = self._cut.stage_of(self._cut.phase_of(self._cut.tensor(name)))
            ranks = self._plan.stages[stage].devices
            here = f"returned {name}"
            if own in ranks:
                part = returned.joined([values[name] for values in outputs])
                if own != ranks[0]:
                    self._transport.send(part, ranks[0], here)
            if own == ranks[0]:
                parts = [part] + [
                    self._transport.receive(part.dtype, part.shape, rank, here)
                    for rank in ranks[1:]
                ]
                found[name] = returned.of_replicas(parts, len(outputs))
            size = self._shares.microbatch_size * self._plan.num_microbatches
            self._tell(found, name, ranks[0], self._cut.tensor(name).dtype, returned.shape(size))
        return found

    def _tell(self, values: Values, name: str, root: int, dtype: Any, shape: Sequence[int]) -> None:
        """Sends a tensor of one rank to all others."""
        if self._transport.rank != root:
            values[name] = self._transport.receive(dtype, shape, root, f"told {name}")
            return
        for rank in range(self._plan.num_devices):
            if rank != root:
                self._transport.send(values[name], rank, f"told {name}")

    # The update.

    def _averages(self, sums: Values) -> Values:
        """The means over all microbatches and replicas, under the names of the reductions."""
        count = self._plan.num_microbatches * len(self._ranks)
        names = list(sums)
        if len(self._ranks) > 1:
            by_dtype: dict[Any, list[str]] = {}
            for name in names:
                by_dtype.setdefault(sums[name].dtype, []).append(name)
            for dtype, members in by_dtype.items():
                joined = tf.concat([tf.reshape(sums[name], [-1]) for name in members], 0)
                total = self._transport.all_reduce(joined, self._ranks, f"gradients {dtype.name}")
                sizes = [sums[name].shape.num_elements() for name in members]
                for name, part in zip(members, tf.split(total, sizes), strict=True):
                    sums[name] = tf.reshape(part, sums[name].shape)
        return {f"{name}:0": sums[name] / tf.cast(count, sums[name].dtype) for name in names}

    def _updated(self, averages: Values, given: Values) -> Values:
        """Updates the stage's variables; what the step returns of that."""
        values = dict(averages)
        for number, function in enumerate(self._updates):
            for one in self._update.exchanged:
                if one.round == number:
                    tensor = self._cut.tensor(one.tensor)
                    root = self._plan.stages[one.source].devices[0]
                    self._tell(values, one.tensor, root, tensor.dtype, tensor.shape)
            values |= function(given, values)
        returned: Values = {}
        for name, stage in self._update.returned.items():
            if stage is not None:
                tensor = self._cut.tensor(name)
                root = self._plan.stages[stage].devices[0]
                self._tell(values, name, root, tensor.dtype, tensor.shape)
            returned[name] = values[name]
        return returned


@dataclass(frozen=True)
class _Function:
    """A function of a part, by names."""

    call: Callable[[Sequence[Any]], list[Any]]
    arguments: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    @classmethod
    def of(cls, extraction: Extraction, part: Any) -> "_Function":
        takes = [*(f"{name}:0" for name in part.arguments), *part.takes]
        return cls(
            extraction.function(part.ops, takes, part.gives),
            part.arguments, part.takes, part.gives,
        )  # fmt: skip

    def __call__(self, arguments: Values, values: Values) -> Values:
        given = [*(arguments[name] for name in self.arguments), *(values[n] for n in self.takes)]
        return dict(zip(self.gives, self.call(given), strict=True))


def _returned(cut: Cut) -> list[Any]:
    return list({one.name: one for one in cut.graph.returned_samples}.values())


def place_of(plan: PipelinePlan, rank: int) -> tuple[int, int]:
    """A rank's stage, and which of its replicas it is.

    Raises:
        ValueError: the plan gives it nothing to do.
    """
    for stage, members in enumerate(plan.stages):
        if rank in members.devices:
            return stage, members.devices.index(rank)
    raise ValueError(f"the plan gives rank {rank} no stage")


def check_plan(cut: Cut, plan: PipelinePlan, axes: Axes) -> None:
    """Raises `ValueError` where stages with different replicas cannot divide what they send."""
    for message in cut.messages:
        source, target = (len(plan.stages[k].devices) for k in (message.source, message.target))
        if source == target:
            continue
        axis = axes.of(message.tensor)
        tensor = cut.tensor(message.tensor)
        depends = cut.graph.sample[cut.graph.place[tensor.op.name]]
        if axis is None and not tensor.dtype.is_floating and depends:
            raise ValueError(
                f"{cut.graph.recording.name}: {message.tensor} would have to be sent from a stage"
                f" of {source} replicas to one of {target}, and does not belong to single samples"
            )
        if axis is not None and tensor.shape[axis] != axes.num_samples:
            raise ValueError(
                f"{cut.graph.recording.name}: {message.tensor} has the shape {tensor.shape}, and"
                f" stages of {source} and {target} replicas cannot tell its"
                f" {axes.num_samples} samples apart"
            )


def _slice(tensor: Any, axis: int | None, whole: Range, part: Range) -> Any:
    assert axis is not None
    if whole == part:
        return tensor
    begin = [0] * tensor.shape.rank
    size = [-1] * tensor.shape.rank
    begin[axis], size[axis] = part.start - whole.start, part.size
    return tf.slice(tensor, begin, size)


def _joined(parts: list[Any], axis: int | None) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)
