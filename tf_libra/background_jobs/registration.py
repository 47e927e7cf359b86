"""Registration of the background job as a hook of training steps."""

from tf_libra.background_jobs import manager
from tf_libra.background_jobs import statistics as statistics
from tf_libra.background_jobs.step_counter import COUNT_VARIABLE
from tf_libra.cli.run import FLAGS, RunFlag
from tf_libra.launcher.env_vars import VARIABLES, EnvVar
from tf_libra.runtime.step_hooks import HOOKS, StepHook


def _active_job() -> StepHook | None:
    return manager.current_manager().background


HOOKS.add("background", _active_job)
FLAGS.add(
    "--background",
    RunFlag(
        "COMMAND",
        "command line of a low-priority job that runs next to training on every rank",
        manager.COMMAND_VARIABLE,
        manager.parse_command,
    ),
)
FLAGS.add(
    "--max-slowdown",
    RunFlag(
        "SHARE",
        f"limit on the mean slowdown of steps by that job ({manager.MAX_SLOWDOWN:g})",
        manager.MAX_SLOWDOWN_VARIABLE,
        lambda name, text: manager.parse_limit(text),
        needs="--background",
    ),
)
for variable in (
    EnvVar(
        manager.COMMAND_VARIABLE,
        "none",
        "background job of every rank; `tf-libra run --background` sets it",
    ),
    EnvVar(
        manager.MAX_SLOWDOWN_VARIABLE,
        "0.05",
        "share by which it may slow steps down; `tf-libra run --max-slowdown` sets it",
    ),
    EnvVar(
        manager.RANK_VARIABLE,
        "not set",
        "rank of a background job; set for the job, not by hand",
    ),
    EnvVar(
        COUNT_VARIABLE,
        "not set",
        "file with a background job's number of steps, an eight-byte little-endian integer; set"
        " for the job, not by hand",
    ),
):
    VARIABLES.add(variable.name, variable)
