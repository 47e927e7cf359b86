"""Tuning sessions of one training function, one for each set of gradients that is all-reduced."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tf_libra import config
from tf_libra.autotune import TensorSpec, Tuner
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.coordination.control_plane import Control
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.fingerprint import environment_fingerprint
from tf_libra.runtime.plan_activation import check_plan_fits
from tf_libra.runtime.rendezvous import Rendezvous
from tf_libra.runtime.step_tracer import StepCall, check_trains
from tf_libra.runtime.strategy_kinds import without_families
from tf_libra.runtime.tuning_session import TuningSession
from tf_libra.specs.backward_profile import rows_of
from tf_libra.specs.plan import Plan
from tf_libra.variable_sync.step_variables import StepVariables


class SessionRegistry:
    """The sessions of one job, made at the first call of a trace with other gradients.

    Attributes:
        current: session of the gradients that were trained last; None before the first step.
        reporter: that of the current session; before the first step, that of the first session.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        rendezvous: Rendezvous,
        variables: StepVariables,
        tuner: Callable[..., Tuner],
        new_reporter: Callable[[], RunReporter],
        find_weights: Callable[[Control, StepCall], tuple[Mapping[str, int], str]],
    ) -> None:
        """Begins without sessions.

        Args:
            name: name of the training function, for messages.
            identity: identity of the training function.
            rendezvous: the ranks, with their options.
            variables: variables of the training function.
            tuner: as for `TuningSession`.
            new_reporter: returns the reporter of a session.
            find_weights: as `ShardedCalls.find_weights`.
        """
        self._name = name
        self._identity = identity
        self._rendezvous = rendezvous
        self._variables = variables
        self._tuner = tuner
        self._new_reporter = new_reporter
        self._find_weights = find_weights
        self._sessions: dict[tuple[ReducedGradient, ...], TuningSession] = {}
        self.current: TuningSession | None = None
        self.reporter = new_reporter()

    @property
    def gathers_rows(self) -> bool:
        """Returns whether a gradient is sparse, so that rows are gathered."""
        return any(
            gradient.is_gathered or gradient.in_dataset
            for gradients in self._sessions
            for gradient in gradients
        )

    def is_known(self, call: StepCall) -> bool:
        """Returns whether `select` has met the call's gradients and variables before."""
        return call.trace.marked in self._sessions and call.passed_variables in call.trace.compared

    def select(self, control: Control, call: StepCall) -> TuningSession:
        """Makes the session of the call's gradients, perhaps a new one, the current one."""
        marked = call.trace.marked
        if marked not in self._sessions:
            self._sessions[marked] = self._new_session(control, call)
        elif call.passed_variables not in call.trace.compared:
            wait_for_ranks = partial(self._rendezvous.check_sync_point, "new variables")
            self._compare_variables(control, call, wait_for_ranks)
        self.current = self._sessions[marked]
        self.reporter = self.current.reporter
        return self.current

    def close_reporters(self) -> None:
        """Reports the summaries, and stops recording."""
        self.reporter.close()
        for session in self._sessions.values():
            session.reporter.close()

    def close(self) -> None:
        """Ends all sessions."""
        self.close_reporters()
        for session in self._sessions.values():
            session.close()

    def _compare_variables(
        self, control: Control, call: StepCall, wait_for_ranks: Callable[[], None] | None
    ) -> None:
        """Makes variables equal that are new to this function; see `StepVariables.compare`."""
        touched = call.touched()
        flow = call.trace.flow(call.concrete, touched)
        found = self._variables.compare(control, touched, flow, wait_for_ranks)
        if found is not None and found.broadcast.names:
            broadcast = found.broadcast
            self.reporter.on_variables_broadcast(broadcast.names, broadcast.num_compared)
        if found is not None and found.differing_buffers:
            self.reporter.on_variables_differ(found.differing_buffers)
        call.trace.compared.add(call.passed_variables)

    def _new_session(self, control: Control, call: StepCall) -> TuningSession:
        job, options = self._rendezvous.job, self._rendezvous.options
        assert isinstance(options, config.DataParallelOptions)
        assert job is not None
        check_trains(call, self._name, job)
        if job.by_strategy:  # whose trials have the whole budget
            strategy: Any = without_families(options.strategy)
            options = replace(options, strategy=strategy)
        marked, left = call.trace.marked, call.trace.left
        tensors = tuple(
            TensorSpec(
                gradient.name,
                gradient.num_bytes,
                rows_of(gradient.dtype) if gradient.is_gathered else gradient.dtype,
            )
            for gradient in marked
            if gradient.is_planned
        )
        is_first = not self._sessions
        reporter = self.reporter if is_first else self._reporter_of_new_trace(control)
        if left:
            reporter.on_unplanned_gradients(job.name, left, has_planned=bool(marked))
        reporter.on_sparse_gradients(
            [gradient.name for gradient in marked if gradient.is_gathered],
            is_planned=any(gradient.is_gathered and gradient.in_groups for gradient in marked),
        )
        reporter.on_gradients_rounded(
            {g.name: (g.rounded_from, g.dtype) for g in marked if g.rounded_from}
        )
        plan = self._user_plan(tensors, reporter, is_first) if marked else None
        if is_first:
            for pattern in self._variables.unmatched(call.touched()):
                reporter.log.warning(
                    "local_variables: %r matches no variable of %s so far", pattern, self._name
                )
        self._compare_variables(control, call, wait_for_ranks=None)
        weights: Mapping[str, int] = {}
        if options.shard_updates:
            reason = options.shard_conflict
            if options.shard_updates == "auto" and job.is_elastic():
                reason = "a rank that is lost would take its parts of slots with it"
            if not reason:
                weights, reason = self._find_weights(control, call)
            if reason and options.shard_updates == "auto":
                reporter.on_updates_whole(reason, logging.DEBUG)
        environment = environment_fingerprint(
            options.engine,
            str(call.concrete.structured_input_signature),
            self._rendezvous.local_size,
            options.wire_dtype,
            options.shard_updates if weights else False,
        )
        return TuningSession(
            self._identity,
            control,
            options,
            reporter,
            tensors,
            environment,
            plan,
            self._tuner,
            weights,
        )

    def _reporter_of_new_trace(self, control: Control) -> RunReporter:
        """Returns the reporter of a trace that all-reduces other gradients than earlier traces."""
        reporter = self._new_reporter()
        reporter.on_join(control.rank, self._rendezvous.options)
        reporter.on_function(f"{self._identity}, trace {1 + len(self._sessions)}")
        reporter.log.info(
            "trace: %s has a new trace, which all-reduces other gradients than before: it"
            " gets a plan of its own",
            self._name,
        )
        return reporter

    def _user_plan(
        self, tensors: tuple[TensorSpec, ...], reporter: RunReporter, is_first: bool
    ) -> Plan | None:
        """Returns the user's plan if it fits these gradients; the first trace has to fit it."""
        plan = self._rendezvous.user_plan
        if plan is None:
            return None
        try:
            check_plan_fits(plan, tensors)
        except ValueError as error:
            if is_first:
                raise
            reporter.log.warning("plan: the user's plan does not fit this trace: %s", error)
            return None
        return plan
