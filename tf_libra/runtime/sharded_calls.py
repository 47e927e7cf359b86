"""Calls with sharded updates, after which each rank holds the owned parts of slots."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from tf_libra import config
from tf_libra.backends import sharded_steps
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.coordination.control_plane import Control
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.concrete_traces import KnownTrace
from tf_libra.runtime.step_tracer import StepCall
from tf_libra.runtime.update_sharding import UpdateSharding, agree
from tf_libra.specs.plan import Plan
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.owned_slots import OwnedSlots, gather_owned
from tf_libra.variable_sync.pending_gathers import pending_gathers
from tf_libra.variable_sync.read_service import RESCUE_SECONDS, SIGNAL_SECONDS, read_service
from tf_libra.variable_sync.variable_access import variable_access


class ShardedCalls:
    """Prepares calls whose updates may be sharded.

    Attributes:
        slots: variables that hold only owned parts between calls.
    """

    def __init__(self, function: str, options: config.DataParallelOptions) -> None:
        """Begins without calls.

        Args:
            function: identity of the training function.
            options: the user's options.
        """
        self.slots = OwnedSlots(function, options.timeout_seconds)
        self._function = function
        self._options = options
        # Of traces that take no variables as arguments.
        self._found: WeakKeyDictionary[KnownTrace, _Found] = WeakKeyDictionary()
        self._shardings: WeakKeyDictionary[KnownTrace, UpdateSharding] = WeakKeyDictionary()
        # Reasons for updates that the ranks cannot share, by gradient; by the gradients of a trace.
        self._whole: dict[tuple[ReducedGradient, ...], dict[str, str]] = {}
        self._last: UpdateSharding | None = None  # of the last call, if it could be sharded
        # Of the present call, if it is sharded, and of one that the end of the data has ended.
        self._weights: tuple[BoundVariable, ...] = ()
        self._reported: set[tuple[str, str]] = set()

    def prepare(self, control: Control, call: StepCall, can_shard: bool) -> str:
        """Returns the id of the sharding of the call's updates; empty if every rank updates all.

        Args:
            control: reaches the other ranks.
            call: the next call.
            can_shard: whether the call may shard updates.
        """
        self._last, self._weights = None, ()
        if can_shard and self._options.shard_updates:
            found = self._find(call)
            self._last = sharding = found.sharding
            if sharding.updates and not self._why_all_whole(control):
                self.slots.begin(control, found.slots, found.early, owner=self)
                pending_gathers().begin_step(found.weight_keys, self._options.timeout_seconds)
                self._weights = found.weights
                return sharding.id
        self.finish()
        return ""

    def finish(self) -> None:
        """Makes all variables whole. All ranks must call it.

        Raises:
            tf.errors.OpError, EngineError: a rank is gone, late, or elsewhere in its script.
        """
        pending_gathers().finish()
        if self.slots:
            self.slots.gather()

    def complete(self, control: Control) -> None:
        """Gathers the weights of a call that the end of the data has ended. All ranks must call it.

        Such a call may have changed them, as by a decay of which each rank computes its part.

        Args:
            control: reaches the other ranks.

        Raises:
            tf.errors.OpError: a rank is gone, late, or elsewhere in its script.
        """
        weights, self._weights = self._weights, ()
        if not self._options.shard_updates:
            return
        pending_gathers().finish()
        owned = [w for w in weights if "GPU" not in w.tensor.device]  # updated whole there
        found = [(f"weight {i}", w.dtype, w.tensor) for i, w in enumerate(owned)]
        gather_owned(control, self._function, found, of_step=True)
        sharded_steps.keep_changes()

    def fail(self, is_exit: bool) -> None:
        """Undoes a step that has failed, and lets all ranks fetch slots, before the job ends.

        Args:
            is_exit: whether a signal or `exit` ends it: the launcher does not wait for long.
        """
        pending_gathers().undo(is_exit)
        read_service().rescue(SIGNAL_SECONDS if is_exit else RESCUE_SECONDS)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps a call, whose graph waits for pending gathers and updates slots by itself."""
        if not self._options.shard_updates:
            yield
            return
        gathers = pending_gathers()
        with variable_access().unobserved(), gathers.computing(), self.slots.computing():
            yield
        self._weights = ()

    def find_weights(self, control: Control, call: StepCall) -> tuple[Mapping[str, int], str]:
        """Returns inputs that hold weights whose updates can be sharded, by gradient.

        All ranks must call it, before the first call with these gradients.

        Returns:
            The inputs, and why there is none; empty if there is one.
        """
        reason = self._options.shard_conflict or self._why_all_whole(control)
        if reason:
            return {}, reason
        alone = self._sharding_alone(call, call.touched())
        self._whole[call.trace.marked] = agree(control, alone)
        sharding = self._find(call).sharding
        if sharding.weight_of:
            return sharding.weight_of, ""
        no_update = "the step updates no variable by a gradient"
        return {}, next(iter(sharding.whole.values()), no_update)

    def report(self, control: Control, plan: Plan, reporter: RunReporter) -> None:
        """Reports, once per trace and plan, which updates of the last call were sharded."""
        sharding = self._last
        if sharding is None or (sharding.id, plan.fingerprint) in self._reported:
            return
        self._reported.add((sharding.id, plan.fingerprint))
        reason = self._why_all_whole(control)
        if reason:
            reporter.on_updates_whole(reason)
            return
        groups = grappler.report(plan).latest.groups
        whole = {
            name: sharding.whole.get(name, group.whole)
            for group in groups
            if not group.is_sharded
            for name in group.tensor_names
        }
        num_sharded = sum(len(group.tensors) for group in groups if group.is_sharded)
        reporter.on_updates_sharded(num_sharded, {**whole, **sharding.whole})

    def _why_all_whole(self, control: Control) -> str:
        per_row = self._options.backend.workers_per_host()
        if per_row is not None and 1 < per_row < control.world_size:
            return "ranks own parts only if all exchange directly, not in two levels"
        return ""

    def _find(self, call: StepCall) -> "_Found":
        found = self._found.get(call.trace)
        if found is None or call.passed_variables:
            touched = call.touched()
            sharding = self._sharding(call, touched)
            inputs = {bound.index: bound for bound in touched}
            found = _Found(
                sharding,
                tuple(inputs[index] for index in sharding.slots),
                frozenset(inputs[index].key for index in sharding.early),
                tuple(inputs[index] for index in sharding.weights),
            )
            if not call.passed_variables:
                self._found[call.trace] = found
        return found

    def _sharding(self, call: StepCall, touched: Sequence[BoundVariable]) -> UpdateSharding:
        """Returns the sharding of the call's trace that all ranks can share."""
        if call.trace not in self._shardings:
            alone = self._sharding_alone(call, touched)
            sharding = alone.without(self._whole.get(call.trace.marked, {}))
            sharding.register()
            self._shardings[call.trace] = sharding
        return self._shardings[call.trace]

    def _sharding_alone(self, call: StepCall, touched: Sequence[BoundVariable]) -> UpdateSharding:
        """Returns the sharding of the call's trace that this rank can make."""
        options = self._options
        return call.trace.sharding(
            call.concrete,
            touched,
            options.overlaps_calls,
            is_exact=options.shard_updates == "auto",
        )


@dataclass(frozen=True)
class _Found:
    """The sharding of a trace, with the variables of a call; early slots by key."""

    sharding: UpdateSharding
    slots: tuple[BoundVariable, ...]
    early: frozenset[int]
    weights: tuple[BoundVariable, ...]

    @cached_property
    def weight_keys(self) -> frozenset[int]:
        """The keys of the weights."""
        return frozenset(weight.key for weight in self.weights)
