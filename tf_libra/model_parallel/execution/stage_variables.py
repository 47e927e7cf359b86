"""The variables of a step in stages, on one rank: equal at first, then each of its own stage.

What a rank holds of other stages grows old with every step. It is brought up to date by the ranks
that have it, or let go in the meantime.
"""

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.internal import log_utils
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.execution.metrics import is_sum
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.variable_sync import bound_variables as variables_lib
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import shard_registry


@dataclass(frozen=True)
class OwnedVariables:
    """A variable that some ranks keep up to date.

    Attributes:
        key: of the variable.
        name: of the variable.
        ranks: those of its stage.
        is_needed: whether this rank computes with it.
        is_sum: whether each of the ranks adds to it what it sees, as to the total of a metric: what
            all have seen is the sum over them.
        is_written: whether a step changes it.
        dtype: of its value.
        shape: static shape of its value.
    """

    key: int
    name: str
    ranks: tuple[int, ...]
    is_needed: bool
    is_sum: bool
    is_written: bool
    dtype: tf.DType
    shape: tf.TensorShape


def owned(
    graph: StepGraph,
    captured: Mapping[str, BoundVariable],
    stages: Mapping[str, int],
    ranks: Sequence[tuple[int, ...]],
    needed: Collection[str],
) -> list[OwnedVariables]:
    """The variables of a trace that belong to a stage, in the order of its inputs.

    Args:
        graph: the trace.
        captured: by placeholder, the variables that it captures.
        stages: by placeholder of a variable, its stage.
        ranks: by stage.
        needed: placeholders of the variables that this rank computes with.
    """
    written = {
        name
        for place in (*graph.microbatch_effects, *graph.update_effects)
        for name in graph.handles[place]
    }
    found = []
    for name, one in captured.items():
        if name in stages:
            owners = ranks[stages[name]]
            uses = name in needed, len(owners) > 1 and is_sum(graph, name), name in written
            found.append(OwnedVariables(one.key, one.name, owners, *uses, one.dtype, one.shape))
    return found


_LET_GO = "let go"


def _standing(one: BoundVariable) -> str:
    """Returns a digest of a variable, or a mark that it was freed, to compare between ranks."""
    if not one.is_number:
        return ""
    return one.digest() if one.shape.is_compatible_with(one.read_value().shape) else _LET_GO


class StageVariables:
    """The state of the variables of one training function, on this rank.

    It outlives the function while other ranks have values that this rank lacks. So it holds no
    reference to a variable: callers pass the variables.
    """

    def __init__(self, function: str, owner: object) -> None:
        """Knows no variables yet.

        Args:
            function: identity of the training function.
            owner: an object that lives as long as the function.
        """
        self._function = function
        self._is_left = self._has_warned = False
        self._variables: dict[int, weakref.ref[Any]] = {}  # by key
        self._shared: set[int] = set()
        self._owned: dict[int, OwnedVariables] = {}
        # Of these only their stages have the values: trained, or let go, since they were brought.
        self._behind: set[int] = set()
        self._gone: set[int] = set()
        # Of these every rank has all, which the ranks of a stage would each add to.
        self._whole: set[int] = set()
        self._reach: tuple[int, Transport] | None = None
        shard_registry().register(function, self, owner)

    @property
    def has_let_go(self) -> bool:
        """True if variables have no elements on the ranks that do not need them."""
        return bool(self._gone)

    @property
    def is_behind(self) -> bool:
        """See `ShardOwner`."""
        return bool(self._behind or self._gone)

    @property
    def is_done(self) -> bool:
        """See `ShardOwner`."""
        return self._is_left and not self._alive(self._behind | self._gone)

    def is_left(self) -> None:
        """See `ShardOwner`; from then on no rank can request other ranks' values by itself."""
        self._is_left = True

    def warn(self) -> None:
        """See `ShardOwner`."""
        if not self._is_left or self._has_warned or self._reach is None:
            return
        rank = self._reach[1].rank
        old = [one for one in self._alive(self._behind | self._gone) if rank not in one.ranks]
        if old:
            self._has_warned = True
            log_utils.logger(rank).warning(
                "%s is gone, and %d variables that it has trained, %s the first of them, are up to"
                " date on other ranks alone, until another optimized function uses them: call"
                " synchronize_variables() while it is there",
                self._function,
                len(old),
                old[0].name,
            )

    def _alive(self, keys: Collection[int]) -> list[OwnedVariables]:
        return [
            one
            for key, one in self._owned.items()
            if key in keys and self._variables[key]() is not None
        ]

    def old(self) -> dict[int, BoundVariable]:
        """See `ShardOwner`."""
        found = {}
        for number, (key, one) in enumerate(self._owned.items()):
            tensor = self._variables[key]()
            if key in self._behind | self._gone and tensor is not None:
                found[number] = BoundVariable(number, one.name, tensor, one.dtype, one.shape)
        return found

    def trained(self) -> dict[int, str]:
        """See `ShardOwner`."""
        keys = [key for key, one in self._owned.items() if one.is_written]
        return {one.key: one.name for one in self._alive(keys)}

    def share(
        self, control: Control, captured: Collection[BoundVariable], may_copy: bool
    ) -> tuple[list[str], int]:
        """Lets variables that are new start as those of rank 0; all ranks call it.

        Args:
            control: reaches them.
            captured: the variables of a trace.
            may_copy: whether variables that differ get rank 0's values; else they raise.

        Returns:
            Names of what differed, and how many are new.

        Raises:
            ValueError: on every rank: a variable differs and `may_copy` is false, or a rank has
                freed the variable and the ranks that had it are lost.
        """
        new = [one for one in captured if one.key not in self._shared]
        self._shared |= {one.key for one in new}
        self._whole |= {one.key for one in new}
        self._variables |= {one.key: weakref.ref(one.tensor) for one in new}
        everyone = control.all_gather([_standing(one) for one in new])
        for index, one in enumerate(new):
            if any(rank[index] == _LET_GO for rank in everyone):
                raise ValueError(
                    f"variable {one.name!r} has no elements: release_variables had freed it on a"
                    " rank when those that had it were lost. Give it to the elastic state, which"
                    " then restores it"
                )
        differing = [
            one for index, one in enumerate(new) if len({rank[index] for rank in everyone}) > 1
        ]
        if differing and not may_copy:
            raise ValueError(
                f"variable {differing[0].name!r} differs between the ranks, and"
                " broadcast_variables=False refuses that"
            )
        for one in differing:
            variables_lib.broadcast(control, one)
        return [one.name for one in differing], len(new)

    def prepare(self, captured: Mapping[int, BoundVariable]) -> None:
        """Lets variables that a step uses be up to date where other functions have trained them.

        Args:
            captured: these variables, by key.
        """
        self._whole |= shard_registry().bring_back(captured, but=self)

    def own(
        self, variables: Iterable[OwnedVariables], world_size: int, transport: Transport
    ) -> None:
        """Records the stages' variables of a trace; uses and writes of all traces are combined.

        Args:
            variables: of the trace.
            world_size: how many ranks there are.
            transport: reaches them.
        """
        self._reach = (world_size, transport)
        for one in variables:
            before = self._owned.get(one.key, one)
            self._owned[one.key] = replace(
                one,
                is_needed=one.is_needed or before.is_needed,
                is_written=one.is_written or before.is_written,
            )

    def stepped(self) -> None:
        """A step has trained what its stages own."""
        self._behind |= {key for key, one in self._owned.items() if one.is_written}

    def forget_owners(self) -> None:
        """Forgets the owners of all variables, for a step with a new layout."""
        self._owned = {}

    def forget_ranks(self) -> None:
        """Forgets other ranks' values, so that this rank's values of all variables count."""
        self._owned, self._behind, self._gone, self._reach = {}, set(), set(), None

    def divide(self, rank: int, held: Mapping[int, BoundVariable]) -> None:
        """Sets sums that every rank has whole to 0 on all ranks of their stage but the first."""
        for key in self._whole & self._owned.keys():
            one = self._owned[key]
            if one.is_sum and rank in one.ranks[1:]:
                held[key].assign(tf.zeros_like(held[key].read_value()))
        self._whole -= self._owned.keys()

    def let_go(self, rank: int, held: Mapping[int, BoundVariable]) -> None:
        """Frees the memory of what this rank neither updates nor computes with.

        Until it is brought back such a variable has no elements, so that whatever uses it fails.
        """
        for key, one in self._owned.items():
            if key in self._gone or not held[key].is_number:
                continue
            self._gone.add(key)  # on some rank, perhaps another one
            if rank not in one.ranks and not one.is_needed:
                held[key].assign(tf.zeros([0], held[key].dtype))

    def brings_back(self, held: Mapping[int, BoundVariable]) -> set[int]:
        """Brings variables up to date on every rank, all of which call it.

        What the ranks of a stage add to, each for its samples, is added up over them.

        Args:
            held: the requested variables, by key.

        Returns:
            Keys of those that were not up to date.

        Raises:
            tf.errors.OpError: a rank is gone or late.
        """
        old = self._behind | self._gone
        wanted = [key for key in self._owned if key in old and key in held]
        for key in wanted:
            self._bring(self._owned[key], held[key])
        brought = set(wanted)
        self._behind -= brought
        self._gone -= brought
        self._whole |= brought
        return brought

    def _bring(self, one: OwnedVariables, held: BoundVariable) -> None:
        assert self._reach is not None
        world_size, transport = self._reach
        own, root = transport.rank, one.ranks[0]
        name = f"variable {one.name}"
        if one.is_sum and one.key not in self._whole:
            part = f"{name}, a part"
            if own in one.ranks[1:]:
                transport.send(held.read_value(), root, part)
            elif own == root:
                parts = [transport.receive(held.dtype, held.shape, r, part) for r in one.ranks[1:]]
                held.assign(tf.add_n([held.read_value(), *parts]))
        if own != root:
            held.assign(transport.receive(held.dtype, held.shape, root, name))
            return
        for rank in range(world_size):
            if rank != root:
                transport.send(held.read_value(), rank, name)
