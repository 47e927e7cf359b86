"""Rendezvous of a training function with those of the other ranks, before its first step."""

import atexit
import contextlib
import platform
import sys
from dataclasses import asdict, replace
from typing import Any

import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.backends import backend as backend_lib
from tf_libra.backends import engine_selection
from tf_libra.capture.automatic_names import without_numbers
from tf_libra.capture.variables import variable_name
from tf_libra.config.validators import AUTO_ENGINE
from tf_libra.coordination import control_plane, current_job, horovod_job
from tf_libra.coordination.consistency_check import agree, first_difference
from tf_libra.coordination.control_plane import Control, ControlTransport
from tf_libra.coordination.job import Job
from tf_libra.coordination.world import World
from tf_libra.internal import log_utils, patches, validation
from tf_libra.internal.process_state import STATE
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.fingerprint import package_version
from tf_libra.runtime.plan_activation import check_plan_can_run
from tf_libra.specs.plan import Plan
from tf_libra.variable_sync import elastic_hooks
from tf_libra.variable_sync.sharded_variables import shard_registry


class Rendezvous:
    """Meets the ranks of the job that there is now, and notices when there is another.

    Attributes:
        control: reaches the other ranks; None before they are met.
        options: the user's options; once the ranks are met, with the backend's threads if the user
            named none.
        given: a plan to follow; None to make one.
        job: whose ranks they are; None before that is known.
        is_alone: whether there is no other rank to meet.
    """

    def __init__(self, name: str, function: str, options: config.Options) -> None:
        """Begins without meeting any rank.

        Args:
            name: of the training function, for messages.
            function: its identity, the same on every rank.
            options: the user's options.
        """
        self._name = name
        self._identity = function
        self.control: Control | None = None
        self.options = self._asked = options
        self.given = options.plan
        self.is_alone = False
        self.job: Job | None = None
        self._world: World | None = None
        self._was_reset = False
        self._told: Exception | None = None  # the others: what is wrong on this rank alone
        self._never_met = ""  # why, if so
        self._joins = contextlib.ExitStack()  # what is replaced while the ranks are connected

    @property
    def is_over(self) -> bool:
        """Returns whether the ranks that were met are not those that there are now."""
        if self.job is None or self._world is None or self._was_reset:
            return self._was_reset
        return self.job.is_another(self._world)

    @property
    def local_size(self) -> int:
        """Number of ranks on this host, once they are met."""
        assert self._world is not None
        return self._world.local_size

    def meet(self, reporter: RunReporter) -> None:
        """Meets the other ranks, if any, and compares what can be compared before tracing.

        Raises:
            ValueError: there is no job, or two; the ranks do not agree; or the user's options
                cannot run here.
            EngineError: a rank is gone, or did not arrive in time.
        """
        job = self.job = current_job.get_job()
        world = self._world = job.world(self._asked.faults.timeout_seconds)
        job.call_on_reset(self._on_reset)
        self._close_others(world)
        self.options = self._asked
        if world.size == 1:
            options = self.options = _with_default_threads(self._asked)
            reporter.on_join(world.rank, options)
            self.is_alone = True
            reporter.log.warning(
                "one process: %s runs as it is, without all-reduce; %s",
                self._name,
                job.how_to_start,
            )
            reporter.on_phase(Phase.PASS_THROUGH)
            return
        options, why = self._with_engine(job, world)
        carrier = control_plane.resolve(options.backend.control)
        control = carrier.running()
        is_new = control is None
        if control is None:
            control = self._started(carrier, options, why, job, world, reporter)
        else:
            self._prepare(options, why, job, world, reporter)
        options = self.options
        self.control = control
        if not is_new:
            # Another rank may be in the middle of another function's step.
            self.check_sync_point("the first step")
        # First of all, so that what is wrong on one rank alone is not left for others to wait for.
        agree(control, self._statement(world))
        # Another function may have started what this one needs more of; on all ranks alike.
        options.backend.get_ready(world, config.most_threads(options))
        if self.given is not None:
            check_plan_can_run(self.given, world.size, options.backend)

    def check_sync_point(self, what: str) -> None:
        """Returns when every rank has come to `what`; fails immediately if one is elsewhere."""
        assert self.control is not None
        self.control.meet(what, self._identity)

    def check(self) -> None:
        """Raises the job's error if the ranks could not meet, as the first call did."""
        if self._never_met:
            raise self._lost(self._never_met)

    def give_up(self, cause: BaseException, error: BaseException) -> None:
        """Tells the other ranks, which wait for what will not come.

        Args:
            cause: why this one gives up.
            error: what has shown it.

        Raises:
            HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow's:
                the cause means that a rank is lost.
        """
        lost = control_plane.lost(cause) if self.control is None else self.control.why_lost(cause)
        for one in control_plane.running():
            one.abort(f"{type(cause).__name__}: {cause}")
        if lost is not None:
            if self.control is None:  # which would repeat it to later calls
                self._never_met = lost
            raise self._lost(lost) from error

    def _lost(self, why: str) -> Exception:
        assert self.job is not None
        return self.job.lost(why)

    def end(self) -> None:
        """Forgets the ranks, which are others than before, and closes what reached them."""
        assert self.job is not None
        self._close_others(self.job.world(self._asked.faults.timeout_seconds))
        self.control = None
        self.given = self._asked.plan
        self.is_alone = False
        self.job = None
        self._world = None
        self._was_reset = False
        self._told = None
        self._never_met = ""

    def _prepare(
        self, options: config.Options, why: str, job: Job, world: World, reporter: RunReporter
    ) -> None:
        """Prepares what this rank needs by itself, and passes its rank and name to the reporter.

        Args:
            options: name the engine that executes all-reduces.
            why: the reason for that engine, if the user named none; else empty.
            job: whose ranks they are.
            world: the ranks of the job.
            reporter: of the training function.
        """
        self.options = _with_default_threads(options)
        reporter.on_join(world.rank, self.options)
        if why:
            reporter.log.info("engine: %s, since %s", self.options.engine, why)
        _warn_of_tensorflow(reporter)
        self.given = _usable(self.options.plan, job, world, reporter)
        reporter.on_function(self._identity)
        reporter.on_activity(Phase.TRACE)

    def _started(
        self,
        carrier: ControlTransport,
        options: config.Options,
        why: str,
        job: Job,
        world: World,
        reporter: RunReporter,
    ) -> Control:
        """Exchanges what the control transport has to know of each rank, and starts it.

        A rank that fails alone sends its error, so that the others do not wait for that rank.
        """
        try:
            self._prepare(options, why, job, world, reporter)
            backend = self.options.backend
            terms = control_plane.ControlConfig(
                backend.num_lanes(config.most_threads(self.options)),
                self.options.faults.timeout_seconds,
                self.options.faults.stall_warning_seconds,
                self.options.faults.liveness_seconds,
            )
            mine = {"offer": carrier.offer(world, terms)}
        except Exception as error:
            self._tell(job, error)
            raise
        offers = [one["offer"] for one in self._exchanged(job, mine)]
        running = carrier.start(world, terms, offers)
        atexit.register(lambda: self._close(running, control_plane.why_program_ends()))
        if not job.by_strategy:
            elastic_hooks.watch_commits()
            if patches.JOIN.exists():
                self._joins.enter_context(patches.replaced(patches.JOIN, horovod_job.join_together))
        return running

    def _with_engine(self, job: Job, world: World) -> tuple[config.Options, str]:
        """Returns options that name an engine, and the reason for it if the user named none.

        If no engine runs yet, all ranks exchange the engine that their user named and what they
        find. This is their first exchange; with the same data, all decide alike.

        Raises:
            ValueError: the named engine is none of this job's, or not that of all ranks.
            EngineError: a rank is gone, did not arrive in time, or has given up.
        """
        if self._told is not None:  # and the others have given up: none would come again
            raise self._told
        options = self._asked
        if not options.is_auto and job.engines and options.engine not in job.engines:
            allowed = " or ".join(map(repr, job.engines))
            raise ValueError(f"engine must be {allowed} under {job.name}, got {options.engine!r}")
        if len(job.engines) == 1:
            one = replace(options, engine=job.engines[0])
            return one, f"{job.name} trains without another" if options.is_auto else ""
        # What runs already runs on all ranks, whatever each would choose.
        for name in engine_selection.ENGINES if options.is_auto else (options.engine,):
            if control_plane.resolve(backend_lib.resolve(name).control).running() is not None:
                with contextlib.suppress(ValueError):  # a plan, or threads, of another's alone
                    return replace(options, engine=name), (
                        "it runs already" if options.is_auto else ""
                    )
        try:
            mine: dict[str, Any] = {"engine": options.engine}
            if options.is_auto:
                mine["found"] = asdict(self._circumstances(world))
        except Exception as error:
            self._tell(job, error)
            raise
        everyone = self._exchanged(job, mine)
        asked = [one["engine"] for one in everyone]
        named = [(rank, one) for rank, one in enumerate(asked) if one != AUTO_ENGINE]
        if named:
            # Ranks that name no engine follow those that name one.
            rank, engine = named[0]
            why = f"rank {rank} asks for it" if options.is_auto else ""
            of_ranks = [engine if one == AUTO_ENGINE else one for one in asked]
            difference = first_difference([{"engine": one} for one in of_ranks])
            if difference is not None:
                raise ValueError(f"the ranks do not agree, nothing was exchanged: {difference}")
        else:
            found = [
                validation.built("circumstances", one["found"], engine_selection.EngineEnvironment)
                for one in everyone
            ]
            engine, why = engine_selection.choose(found)
        try:
            return replace(options, engine=engine), why
        except ValueError as error:  # what others name, and this one's plan or threads are not for
            self._tell(job, error)
            raise

    def _circumstances(self, world: World) -> engine_selection.EngineEnvironment:
        """Returns what this rank finds, from which all ranks choose the engine."""
        options = self._asked
        only_lanes = ""
        try:
            replace(options, engine="horovod")
        except ValueError as error:  # a plan, or threads, that are lanes' alone
            only_lanes = str(error)
        return engine_selection.circumstances(world, config.most_threads(options), only_lanes)

    def _tell(self, job: Job, error: Exception) -> None:
        """Sends the others, which wait for an exchange, the reason why this rank gives up."""
        self._told = error
        gave_up = {"gave up": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(control_plane.EngineError):
            job.exchange_json(gave_up, self._asked.faults.timeout_seconds)

    def _exchanged(self, job: Job, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchanges a message of every rank before the control plane runs.

        Raises:
            LostRankError: a rank has reported why it gives up; else as in `Job.exchange_json`.
        """
        everyone = job.exchange_json(mine, self._asked.faults.timeout_seconds)
        for rank, one in enumerate(everyone):
            if "gave up" in one:
                raise control_plane.LostRankError(
                    f"rank {rank} gave up before the ranks met: {one['gave up']}"
                )
        return everyone

    def _close_others(self, world: World) -> None:
        """Closes what reached the ranks of an earlier job, whichever function trained in it."""
        for running in control_plane.left_over(world):
            self._close(running, control_plane.LEFT)
        shard_registry().of_job(world.job)

    def _close(self, control: Control, why: str) -> None:
        self._joins.close()
        try:
            control.close(why)
        except control_plane.EngineError as error:  # what hangs must not keep the process
            log_utils.logger(control.rank).warning("closing: %s", error)

    def _on_reset(self) -> None:
        """Horovod's elastic mode has made a new job of the workers that there are now."""
        for running in control_plane.running():
            self._close(running, control_plane.LEFT)
        self._was_reset = True
        STATE.reset()

    def _statement(self, world: World) -> dict[str, Any]:
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
            "plan": None if self.given is None else self.given.fingerprint,
            "local_variables": [
                one if isinstance(one, str) else without_numbers(variable_name(one))
                for one in options.local_variables
            ],
            "Grappler switched off": grappler.is_switched_off(),
        }


def _with_default_threads(options: config.Options) -> config.Options:
    """Returns the options with the threads of the prepared backend if the user named none."""
    if not options.default_threads:
        return options
    return replace(options, strategy=options.backend.default_threads(options.strategy))


def _warn_of_tensorflow(reporter: RunReporter) -> None:
    """Logs a warning for each of the user's settings that keeps plans from having their effect."""
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
    """The plan that was given, unless an elastic job has outlived the number of its workers."""
    if plan is None or not job.is_elastic() or plan.num_workers == world.size:
        return plan
    reporter.log.warning(
        "plan: made for %d workers, and there are %d now; measuring for another",
        plan.num_workers,
        world.size,
    )
    return None
