"""Choice of one engine by all ranks, before the control plane runs."""

import contextlib
from dataclasses import asdict, replace
from typing import Any

from tf_libra import config
from tf_libra.backends import backend as backend_lib
from tf_libra.backends import engine_selection
from tf_libra.config.validators import AUTO_ENGINE
from tf_libra.coordination import control_plane
from tf_libra.coordination.consistency_check import first_difference
from tf_libra.coordination.job import Job
from tf_libra.coordination.world import World

# Key of the message of a rank that fails alone. Keys of other messages must differ.
_GAVE_UP = "gave up"


class BootstrapExchange:
    """Exchanges by which the ranks of a job prepare the control plane.

    Attributes:
        published: the error that this rank has sent to the others; None if there is none.
    """

    def __init__(self, job: Job, timeout_seconds: float) -> None:
        """Exchanges nothing yet.

        Args:
            job: job of the ranks.
            timeout_seconds: how long to wait for the other ranks.
        """
        self._job = job
        self._timeout_seconds = timeout_seconds
        self.published: Exception | None = None

    def all_gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns every rank's message, by rank.

        Raises:
            LostRankError: a rank has published an error; or as in `Job.exchange_json`.
        """
        everyone = self._job.exchange_json(message, self._timeout_seconds)
        for rank, theirs in enumerate(everyone):
            if _GAVE_UP in theirs:
                raise control_plane.LostRankError(
                    f"rank {rank} gave up before the ranks met: {theirs[_GAVE_UP]}"
                )
        return everyone

    def publish_error(self, error: Exception) -> None:
        """Sends the reason why this rank gives up to the others, which wait for an exchange."""
        self.published = error
        message = {_GAVE_UP: f"{type(error).__name__}: {error}"}
        with contextlib.suppress(control_plane.EngineError):
            self._job.exchange_json(message, self._timeout_seconds)


def negotiate_engine(
    options: config.Options, job: Job, world: World, exchange: BootstrapExchange
) -> tuple[config.Options, str]:
    """Returns options that name an engine, and the reason for it if the user named none.

    An engine that runs already is used again. Otherwise, all ranks exchange the engine that their
    user named and their environment, and decide by the same rule. It is their first exchange.

    Args:
        options: the user's options.
        job: job of the ranks.
        world: ranks of the job.
        exchange: exchanges messages with the other ranks.

    Raises:
        ValueError: the job cannot use the named engine, or the ranks name different engines.
        EngineError: a rank is gone, did not arrive in time, or has given up.
    """
    if exchange.published is not None:  # the other ranks have failed, and exchange nothing more
        raise exchange.published
    if not options.is_auto and job.engines and options.engine not in job.engines:
        allowed = " or ".join(map(repr, job.engines))
        raise ValueError(f"engine must be {allowed} under {job.name}, got {options.engine!r}")
    if len(job.engines) == 1:
        only = replace(options, engine=job.engines[0])
        return only, f"{job.name} trains without another" if options.is_auto else ""
    for name in engine_selection.ENGINES if options.is_auto else (options.engine,):
        if control_plane.resolve(backend_lib.resolve(name).control).running() is not None:
            # Plans and thread counts may be valid for the other engine alone.
            with contextlib.suppress(ValueError):
                return replace(options, engine=name), ("it runs already" if options.is_auto else "")
    try:
        mine: dict[str, Any] = {"engine": options.engine}
        if options.is_auto:
            mine["found"] = asdict(_environment(options, world))
    except Exception as error:
        exchange.publish_error(error)
        raise
    engine, reason = _agreed_engine(options, exchange.all_gather(mine))
    try:
        return replace(options, engine=engine), reason
    except ValueError as error:  # this rank's plan or threads are not valid for that engine
        exchange.publish_error(error)
        raise


def _agreed_engine(options: config.Options, everyone: list[dict[str, Any]]) -> tuple[str, str]:
    """Returns the engine that all ranks choose, and the reason if this rank's user named none."""
    requested = [message["engine"] for message in everyone]
    named = [(rank, engine) for rank, engine in enumerate(requested) if engine != AUTO_ENGINE]
    if not named:
        environments = [
            engine_selection.EngineEnvironment.parse("circumstances", message["found"])
            for message in everyone
        ]
        return engine_selection.choose(environments)
    # Ranks with engine="auto" adopt the engine that another rank names.
    rank, engine = named[0]
    of_ranks = [engine if other == AUTO_ENGINE else other for other in requested]
    difference = first_difference([{"engine": other} for other in of_ranks])
    if difference is not None:
        raise ValueError(f"the ranks do not agree, nothing was exchanged: {difference}")
    return engine, f"rank {rank} asks for it" if options.is_auto else ""


def _environment(options: config.Options, world: World) -> engine_selection.EngineEnvironment:
    """Returns this rank's environment, from which all ranks choose the engine."""
    only_lanes = ""
    try:
        replace(options, engine="horovod")
    except ValueError as error:  # the plan or the thread counts need lanes
        only_lanes = str(error)
    return engine_selection.circumstances(world, options.num_lanes, only_lanes)
