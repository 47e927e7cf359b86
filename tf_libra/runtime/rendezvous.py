"""Rendezvous of a training function's ranks before its first step."""

import atexit
import contextlib
import platform
import sys
from typing import Any

import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.capture.automatic_names import without_numbers
from tf_libra.capture.variables import variable_name
from tf_libra.coordination import control_plane, current_job, horovod_job
from tf_libra.coordination.consistency_check import agree
from tf_libra.coordination.control_plane import Control, ControlTransport
from tf_libra.coordination.job import Job
from tf_libra.coordination.world import World
from tf_libra.internal import log_utils, patches, patching
from tf_libra.internal.process_state import STATE, OnReset
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.engine_negotiation import BootstrapExchange, negotiate_engine
from tf_libra.runtime.fingerprint import package_version
from tf_libra.runtime.plan_activation import check_plan_can_run
from tf_libra.specs.plan import Plan
from tf_libra.variable_sync import elastic_hooks
from tf_libra.variable_sync.read_service import read_service
from tf_libra.variable_sync.sharded_variables import shard_registry

# Characters by which an error of this rank is found again in the reason of a later one.
_MOST_COMPARED = 200


@STATE.value(on_reset=OnReset.DISCARD, survives_fork=False)
def _own_failures() -> list[str]:
    """Errors for which this rank has aborted the steps of the others."""
    return []


class Rendezvous:
    """Connects the ranks of the current job, and detects that another job has begun.

    Attributes:
        control: reaches the other ranks; None before they have met.
        options: the user's options; once the ranks have met, with an engine and thread counts.
        user_plan: the user's plan; None to make one.
        job: job of the ranks; None before it is known.
        is_alone: whether there is no other rank.
    """

    def __init__(self, name: str, function: str, options: config.Options) -> None:
        """Begins without ranks.

        Args:
            name: name of the training function, for messages.
            function: its identity, the same on every rank.
            options: the user's options.
        """
        self._name = name
        self._identity = function
        self.options = self._requested = options
        self._joins = contextlib.ExitStack()  # `hvd.join` is replaced while ranks are connected
        self._begin_job()

    def _begin_job(self) -> None:
        self.control: Control | None = None
        self.user_plan = self._requested.all_reduce_plan
        self.is_alone = False
        self.job: Job | None = None
        self._world: World | None = None
        self._exchange: BootstrapExchange | None = None
        self._was_reset = False
        self._lost_before_start = ""  # reason why a rank was lost before the control plane ran

    @property
    def is_over(self) -> bool:
        """Returns whether the ranks that met belong to an earlier job."""
        if self.job is None or self._world is None or self._was_reset:
            return self._was_reset
        return self.job.is_another(self._world)

    @property
    def local_size(self) -> int:
        """Number of ranks on this host, once the ranks have met."""
        assert self._world is not None
        return self._world.local_size

    @property
    def rank_and_size(self) -> tuple[int, int]:
        """Rank and number of ranks, once the ranks have met."""
        assert self._world is not None
        return self._world.rank, self._world.size

    def join(self, reporter: RunReporter) -> None:
        """Meets the other ranks, if any, and compares what can be compared before tracing.

        Args:
            reporter: receives this rank, its engine, and warnings.

        Raises:
            ValueError: there is no job, or two; the ranks do not agree; or the user's options
                cannot run here.
            EngineError: a rank is gone, or did not arrive in time.
        """
        timeout_seconds = self._requested.timeout_seconds
        job = self.job = current_job.get_job()
        world = self._world = job.world(timeout_seconds)
        job.call_on_reset(self._on_reset)
        job.call_before_shutdown(read_service().settle)
        self._close_earlier(world)
        self.options = self._requested
        if world.size == 1:
            self._be_alone(job, world, reporter)
            return
        if self._exchange is None:
            self._exchange = BootstrapExchange(job, timeout_seconds)
        options, reason = negotiate_engine(self._requested, job, world, self._exchange)
        transport = control_plane.resolve(options.backend.control)
        control = transport.running()
        if control is None:
            self.control = self._start(
                transport, options, reason, job, world, self._exchange, reporter
            )
        else:
            self._prepare(options, reason, job, world, reporter)
            self.control = control
            # Another rank may be in the middle of another function's step.
            self.check_sync_point("the first step")
        options = self.options
        # Before anything else, so that no rank waits for a rank whose options are invalid.
        agree(self.control, self._statement(world))
        # The engine may have been started with fewer threads, on all ranks alike.
        options.backend.get_ready(world, options.num_lanes)
        if self.user_plan is not None:
            check_plan_can_run(self.user_plan, world.size, options.backend)

    def check_sync_point(self, what: str) -> None:
        """Waits for every rank to come to `what`; raises immediately if one is elsewhere."""
        assert self.control is not None
        self.control.barrier(what, self._identity)

    def check(self) -> None:
        """Raises the job's error again if the ranks could not meet."""
        if self._lost_before_start:
            raise self._lost(self._lost_before_start)

    def abort(self, cause: BaseException, error: BaseException) -> None:
        """Aborts the steps of the other ranks, which would wait for this one.

        Args:
            cause: reason why this rank gives up.
            error: error that has shown it.

        Raises:
            HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow:
                the cause means that a rank is lost.
        """
        lost = control_plane.lost(cause) if self.control is None else self.control.why_lost(cause)
        reason = f"{type(cause).__name__}: {cause}"
        for running in control_plane.running():
            running.abort(reason)
        if lost is None:
            _own_failures().append(reason[:_MOST_COMPARED])
        elif any(failure in lost for failure in _own_failures()):
            lost = f"an earlier call has failed, which has ended the job: {lost}"
        if lost is not None:
            if self.control is None:  # a running control plane repeats the reason by itself
                self._lost_before_start = lost
            raise self._lost(lost) from error

    def _lost(self, reason: str) -> Exception:
        assert self.job is not None
        return self.job.lost(reason)

    def end(self) -> None:
        """Closes connections to the ranks of an earlier job, and forgets them."""
        assert self.job is not None
        self._close_earlier(self.job.world(self._requested.timeout_seconds))
        self._begin_job()

    def _be_alone(self, job: Job, world: World, reporter: RunReporter) -> None:
        self.options = self._requested.with_backend_threads()
        reporter.on_join(world.rank, self.options)
        self.is_alone = True
        reporter.log.warning(
            "one process: %s runs as it is, without all-reduce; %s", self._name, job.how_to_start
        )
        reporter.on_phase(Phase.PASS_THROUGH)

    def _prepare(
        self, options: config.Options, reason: str, job: Job, world: World, reporter: RunReporter
    ) -> None:
        """Prepares this rank, without the others.

        Args:
            options: options that name an engine.
            reason: reason for that engine; empty if the user named it.
            job: job of the ranks.
            world: ranks of the job.
            reporter: receives this rank and its engine.
        """
        self.options = options.with_backend_threads()
        reporter.on_join(world.rank, self.options)
        if reason:
            reporter.log.info("engine: %s, since %s", self.options.engine, reason)
        _warn_of_tensorflow(reporter)
        self.user_plan = _usable(self.options.all_reduce_plan, job, world, reporter)
        reporter.on_function(self._identity)
        reporter.on_activity(Phase.TRACE)

    def _start(
        self,
        transport: ControlTransport,
        options: config.Options,
        reason: str,
        job: Job,
        world: World,
        exchange: BootstrapExchange,
        reporter: RunReporter,
    ) -> Control:
        """Exchanges the addresses of all ranks, and starts the control plane.

        A rank that fails alone sends its error, so that the others do not wait for that rank.
        """
        try:
            self._prepare(options, reason, job, world, reporter)
            backend = self.options.backend
            terms = control_plane.ControlConfig(
                backend.num_lanes(self.options.num_lanes),
                self.options.timeout_seconds,
                self.options.faults.stall_warn_seconds,
                self.options.faults.liveness_seconds,
            )
            mine = {"offer": transport.offer(world, terms)}
        except Exception as error:
            exchange.publish_error(error)
            raise
        offers = [message["offer"] for message in exchange.all_gather(mine)]
        running = transport.start(world, terms, offers)
        atexit.register(lambda: self._close(running, control_plane.why_program_ends()))
        if horovod_job.is_known():
            elastic_hooks.watch_commits()
            if patches.JOIN.exists():
                self._joins.enter_context(
                    patching.replaced(patches.JOIN, horovod_job.join_together)
                )
        return running

    def _close_earlier(self, world: World) -> None:
        """Closes connections to the ranks of an earlier job, of all training functions."""
        for running in control_plane.left_over(world):
            self._close(running, control_plane.LEFT)
        shard_registry().begin_job(world.job)

    def _close(self, control: Control, reason: str) -> None:
        self._joins.close()
        try:
            control.close(reason)
        except control_plane.EngineError as error:  # a thread that hangs must not keep the process
            log_utils.logger(control.rank).warning("closing: %s", error)

    def _on_reset(self) -> None:
        """Leaves the job: Horovod's elastic mode begins another with the present workers."""
        read_service().settle()
        for running in control_plane.running():
            self._close(running, control_plane.LEFT)
        self._was_reset = True
        STATE.reset()

    def _statement(self, world: World) -> dict[str, Any]:
        """Returns what every rank must have alike, in the order in which differences matter."""
        options = self.options
        return {
            "world size": world.size,
            "version of TensorFlow": tf.__version__,
            "version of tf_libra": package_version(),
            "machine": f"{platform.machine()}, {sys.byteorder} endian",
            "function": self._identity,
            "engine": options.engine,
            **options.backend.agreed(),
            **options.agreed(),
            "strategy": repr(options.strategy),
            "plan": None if self.user_plan is None else self.user_plan.fingerprint,
            "local_variables": [
                local if isinstance(local, str) else without_numbers(variable_name(local))
                for local in options.local_variables
            ],
            "Grappler switched off": grappler.is_switched_off(),
        }


def _warn_of_tensorflow(reporter: RunReporter) -> None:
    """Logs a warning for each TensorFlow setting that keeps plans from having their effect."""
    if grappler.is_switched_off():
        reporter.log.warning(
            "Grappler is switched off (disable_meta_optimizer), so no plan can take effect:"
            " every gradient is all-reduced by itself"
        )
    if grappler.is_clustered_by_xla():
        reporter.log.warning(
            "XLA clusters the step's ops by itself (tf.config.optimizer.set_jit or"
            " TF_XLA_FLAGS): gradients come when their cluster ends, and less overlaps"
        )


def _usable(plan: Plan | None, job: Job, world: World, reporter: RunReporter) -> Plan | None:
    """Returns the user's plan, unless an elastic job has another number of workers by now."""
    if plan is None or not job.is_elastic() or plan.num_workers == world.size:
        return plan
    reporter.log.warning(
        "plan: made for %d workers, but the job has %d now; measuring for a new plan",
        plan.num_workers,
        world.size,
    )
    return None
