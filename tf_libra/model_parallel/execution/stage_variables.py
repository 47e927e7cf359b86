"""Variables of a step in stages: equal on all ranks at first, then trained by their stage only.

Values that a rank holds of other stages become stale with every step, and are freed. The first rank
of the stage serves reads of them, and steps that use them on other ranks synchronize them.
"""

import contextlib
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.internal import log_utils
from tf_libra.model_parallel.execution.owned_variables import OwnedVariable
from tf_libra.model_parallel.execution.transport import NotReceivedError, Transport
from tf_libra.model_parallel.partition.guarded_calls import CallGuard
from tf_libra.runtime.family_options import describe_error
from tf_libra.variable_sync import bound_variables as variables_lib
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.one_sided_reads import TrainedVariable, VariableReads
from tf_libra.variable_sync.sharded_variables import Together, make_call, shard_registry

_LACKING = "lacking"


def _digest_or_mark(variable: BoundVariable) -> str:
    """Returns a digest of a variable to compare, or a mark that this rank has no value."""
    if not variable.is_number:
        return ""
    is_present = variable.shape.is_compatible_with(variable.read_value().shape)
    return variable.digest() if is_present else _LACKING


class StageVariables:
    """State of the variables of one training function, on this rank.

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
        self._is_collected = self._has_warned = False
        self._references: dict[int, weakref.ref[Any]] = {}  # to variables, by key
        self._initialized: set[int] = set()
        self._owned: dict[int, OwnedVariable] = {}
        # Keys of variables of which only their stages have the values: because they have been
        # trained, or released, since the last synchronization.
        self._stale: set[int] = set()
        self._released: set[int] = set()
        # Keys of variables with the same, complete value on every rank: the replicas of a stage
        # must split a sum before each of them adds to it.
        self._complete: set[int] = set()
        # Keys of the variables of the present step: others belong to another trace, and perhaps to
        # another function that has trained them since.
        self._present: Collection[int] = ()
        self._world: tuple[int, Transport] | None = None
        self._unreceived = Counter[int]()  # values that were sent to this rank, by key
        self._reads = VariableReads(function)
        self._numbers: dict[int, int] = {}  # by key; equal on all ranks
        self._changed: list[TrainedVariable] | None = None  # made by `_changed_variables`
        shard_registry().register(function, self, owner)

    # The protocol `ShardOwner`.

    @property
    def is_stale(self) -> bool:
        """See `ShardOwner`."""
        return bool(self._stale or self._released)

    @property
    def is_done(self) -> bool:
        """See `ShardOwner`."""
        return self._is_collected and not self._existing(self._stale | self._released)

    def on_owner_collected(self) -> None:
        """See `ShardOwner`; after this no rank can synchronize the function's variables alone."""
        self._is_collected = True
        self._reads.release()

    def warn(self) -> None:
        """See `ShardOwner`."""
        if not self._is_collected or self._has_warned or self._world is None:
            return
        rank = self._world[1].rank
        existing = self._existing(self._stale | self._released)
        stale = [
            variable
            for variable in existing
            if rank not in variable.ranks and not variable.is_served
        ]
        if stale:
            self._has_warned = True
            log_utils.logger(rank).warning(
                "%s was garbage-collected while %d variables (first: %r) were current on other"
                " ranks only; call synchronize_variables() before dropping it",
                self._function,
                len(stale),
                stale[0].name,
            )

    def _existing(self, keys: Collection[int]) -> list[OwnedVariable]:
        """Returns the variables with these keys that still exist."""
        return [
            variable
            for key, variable in self._owned.items()
            if key in keys and self._references[key]() is not None
        ]

    def stale(self) -> dict[int, BoundVariable]:
        """See `ShardOwner`."""
        found = {}
        for number, (key, variable) in enumerate(self._owned.items()):
            tensor = self._references[key]()
            if key in self._stale | self._released and tensor is not None:
                found[number] = BoundVariable(
                    number, variable.name, tensor, variable.dtype, variable.shape
                )
        return found

    def trained(self) -> dict[int, str]:
        """See `ShardOwner`."""
        keys = [key for key, variable in self._owned.items() if variable.is_written]
        return {variable.key: variable.name for variable in self._existing(keys)}

    def synchronize(
        self, bound: Mapping[int, BoundVariable], together: Together = make_call
    ) -> set[int]:
        """Synchronizes variables on all ranks, all of which call this.

        A rank that has no memory for a value takes part in all other transfers, so that no rank
        waits for it. Variables stay stale if `together` raises, and can be synchronized again.

        Args:
            bound: the requested variables, by key.
            together: called after the transfers with what raises this rank's failure.

        Returns:
            Keys of the variables that were stale or released.

        Raises:
            EngineError, tf.errors.OpError: a rank is gone or late, or a transfer has failed.
        """
        outdated = self._stale | self._released
        keys = [key for key in self._owned if key in outdated and key in bound]
        guards = {key: CallGuard() for key in keys}
        for key, guard in guards.items():
            self._synchronize(self._owned[key], bound[key], guard)
        if keys:  # the same on all ranks
            together(lambda: self._check_synchronized(guards))
        synchronized = set(keys)
        self._stale -= synchronized
        self._released -= synchronized
        self._changed = None
        self._complete |= synchronized
        self._reads.forget(synchronized)
        return synchronized

    def _check_synchronized(self, guards: Mapping[int, CallGuard]) -> None:
        """Raises `RuntimeError` if this rank could not receive, assign or read a variable."""
        for key, guard in guards.items():
            if guard.error is not None:
                variable = self._owned[key]
                raise RuntimeError(
                    f"variable {variable.name!r}, which rank {variable.ranks[0]} has trained, could"
                    f" not be synchronized: {describe_error(guard.error)}"
                ) from guard.error

    def _synchronize(self, variable: OwnedVariable, bound: BoundVariable, guard: CallGuard) -> None:
        assert self._world is not None
        world_size, transport = self._world
        own, root = transport.rank, variable.ranks[0]
        message = f"variable {variable.name}"
        if own != root:
            self._unreceived[variable.key] += 1
            try:
                while self._unreceived[variable.key]:  # the last one is of this synchronization
                    value = transport.receive(bound.dtype, bound.shape, root, message)
                    self._unreceived[variable.key] -= 1
            except NotReceivedError as error:
                guard.error = error
                return

            def assign() -> list[Any]:
                bound.assign(value)
                return []

            # A value that this rank has read, and perhaps changed, since the last step counts.
            if not variable.is_served or self._reads.is_missing(variable.key):
                guard.call(assign, ())
            return
        (value,) = guard.call(
            lambda: [bound.read_value()], [tf.TensorSpec(bound.shape, bound.dtype)]
        )
        for rank in range(world_size):
            if rank != root:
                transport.send(value, rank, message)

    def forget_ranks(self) -> None:
        """See `ShardOwner`; after this, this rank's values of all variables count."""
        self._owned, self._stale, self._released, self._world = {}, set(), set(), None
        self._changed = None
        self._unreceived.clear()
        self._reads.forget_all()

    # Before the first step with a trace.

    def broadcast_initial_values(
        self, control: Control, captured: Collection[BoundVariable], may_copy: bool
    ) -> tuple[list[str], int]:
        """Initializes new variables with the values of rank 0; all ranks call this.

        Args:
            control: control plane of the job.
            captured: the variables of a trace.
            may_copy: whether different variables get rank 0's values, instead of an error.

        Returns:
            Names of the variables that differed, and the number of new ones.

        Raises:
            ValueError: on every rank: a variable differs and `may_copy` is false, or rank 0 has no
                value of the variable, and the ranks that had it are lost.
        """
        new = [variable for variable in captured if variable.key not in self._initialized]
        keys = {variable.key for variable in new}
        self._initialized |= keys
        self._complete |= keys
        self._references |= {variable.key: weakref.ref(variable.tensor) for variable in new}
        digests = control.all_gather([_digest_or_mark(variable) for variable in new])
        different = []
        for variable, values in zip(new, zip(*digests, strict=True), strict=True):
            if values[0] == _LACKING:
                raise ValueError(
                    f"variable {variable.name!r} has no elements on rank 0: the ranks with its"
                    " value were lost; add it to the elastic state, which restores it"
                )
            if len(set(values)) > 1:
                different.append(variable)
        if different and not may_copy:
            raise ValueError(
                "broadcast_variables='never', but the initial value of variable"
                f" {different[0].name!r} differs between ranks; initialize it equally"
            )
        for variable in different:
            variables_lib.broadcast(control, variable)
        return [variable.name for variable in different], len(new)

    def synchronize_with_others(
        self, captured: Mapping[int, BoundVariable], together: Together = make_call
    ) -> None:
        """Synchronizes variables that other functions have trained; all ranks call this.

        Args:
            captured: variables that a step uses, by key.
            together: see `synchronize`.
        """
        self._complete |= shard_registry().synchronize(captured, self, together)

    def set_owners(
        self, variables: Iterable[OwnedVariable], world_size: int, transport: Transport
    ) -> None:
        """Records the owned variables of a trace, and combines uses and writes of all traces.

        Args:
            variables: owned variables of the trace.
            world_size: number of ranks.
            transport: transport to the other ranks.
        """
        self._world = (world_size, transport)
        self._changed = None
        for variable in variables:
            self._numbers.setdefault(variable.key, len(self._numbers))
            before = self._owned.get(variable.key, variable)
            self._owned[variable.key] = replace(
                variable,
                is_used=variable.is_used or before.is_used,
                is_written=variable.is_written or before.is_written,
                may_differ=variable.may_differ or before.may_differ,
                is_sum=variable.is_sum or before.is_sum,
            )

    def clear_owners(self) -> None:
        """Forgets the owners of all variables, for a step with a new layout."""
        self._owned, self._changed = {}, None

    # In every step.

    def begin_step(self, rank: int, bound: Mapping[int, BoundVariable], releases: bool) -> None:
        """Prepares the variables of a step, those of its trace alone; see `split_sums`.

        With `releases`, see `release`, too.
        """
        self._present = bound.keys()
        if releases:
            self.release(rank, bound)
        self.split_sums(rank, bound)

    def _present_variables(self) -> list[tuple[int, OwnedVariable]]:
        """Returns the owned variables of the present step, by key."""
        return [(key, owned) for key, owned in self._owned.items() if key in self._present]

    def _changed_in_step(self) -> list[TrainedVariable]:
        return [entry for entry in self._changed_variables() if entry.key in self._present]

    @property
    def has_released(self) -> bool:
        """True if some rank has released variables."""
        return bool(self._released)

    def release(self, rank: int, bound: Mapping[int, BoundVariable]) -> None:
        """Frees the memory of variables that this rank neither updates nor computes with.

        A released variable has no elements until the end of the step, and then until it is read or
        synchronized.
        """
        for key, variable in self._present_variables():
            if key in self._released or not bound[key].is_number:
                continue
            self._released.add(key)  # on every rank, although not all free memory
            self._changed = None
            if rank not in variable.ranks and not variable.is_used:
                bound[key].assign(tf.zeros([0], bound[key].dtype))

    def split_sums(self, rank: int, bound: Mapping[int, BoundVariable]) -> None:
        """Sets complete sums to 0 on all ranks of their stage but the first."""
        for key, variable in self._present_variables():
            if key in self._complete and variable.is_sum and rank in variable.ranks[1:]:
                bound[key].assign(tf.zeros_like(bound[key].read_value()))
            self._complete.discard(key)

    def mark_stale(self) -> None:
        """Records that a step has trained its variables."""
        self._stale |= {key for key, variable in self._present_variables() if variable.is_written}
        changed = self._changed_in_step()
        self._reads.end_step(entry for entry in changed if entry.owner != self._rank)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps the computation of a step, whose variables other ranks read in between."""
        served = [entry for entry in self._changed_in_step() if entry.owner == self._rank]
        with self._reads.computing(served):
            yield
            self._complete_sums()

    @property
    def _rank(self) -> int:
        assert self._world is not None
        return self._world[1].rank

    def _complete_sums(self) -> None:
        """Adds the parts of sums on the first rank of their stage, which serves them."""
        assert self._world is not None
        transport = self._world[1]
        owned = [variable for _, variable in self._present_variables()]
        sums = [variable for variable in owned if variable.is_sum and variable.is_written]
        for variable in sums:
            handle, (root, *others) = self._references[variable.key](), variable.ranks
            message = f"variable {variable.name}, a part of it"
            if transport.rank in others:
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                transport.send(value, root, message)
            elif transport.rank == root:
                for rank in others:
                    part = transport.receive(variable.dtype, variable.shape, rank, message)
                    tf.raw_ops.AssignAddVariableOp(resource=handle, value=part)
        self._complete.update(variable.key for variable in sums)

    def _changed_variables(self) -> list[TrainedVariable]:
        """Returns the variables that steps change, and not every rank of their stage has."""
        if self._changed is None:
            self._changed = []
            for key, variable in self._owned.items():
                owner, rank = variable.ranks[0], self._rank
                is_current = rank != owner and rank in variable.ranks and not variable.may_differ
                is_changed = variable.is_written or key in self._released
                if variable.is_served and is_changed and not is_current:
                    self._changed.append(
                        TrainedVariable(
                            self._numbers[key],
                            key,
                            variable.name,
                            variable.dtype,
                            variable.shape,
                            self._references[key],
                            owner,
                            is_used=rank in variable.ranks or variable.is_used,
                        )
                    )
        return self._changed
