"""NCCL's settings for thread control: the environment before NCCL starts.

An NCCL kernel runs channels x NCCL_NTHREADS threads. NCCL_NTHREADS is one number per process,
which `prepare` sets before NCCL starts. `nccl_tuner` sets the channels of each all-reduce.
Importing this module loads neither TensorFlow nor NCCL.
"""

import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_libra.coordination.launcher_environment import launched_rank
from tf_libra.internal import log_utils, validation

PATH = Path(__file__).resolve().parent.parent / "libnccl-tuner-libra.so"

# Powers of two, as in LIBRA, section V-A.
THREADS = (128, 256, 512, 1024, 2048, 4096)
# Values that NCCL_NTHREADS may have.
THREADS_PER_CHANNEL = (64, 128, 256, 512)
# Channel limit of every NCCL since 2.19; newer releases allow 64.
MAX_CHANNELS = 32
# NCCL truncates a longer plugin name.
_MAX_PATH = 254
_OLDEST_NCCL = 21900

_NTHREADS_VALUES = tuple(map(str, THREADS_PER_CHANNEL))
_PLUGIN = "NCCL_TUNER_PLUGIN"
# The plugin reads it, see ops/nccl_tuner/next_tuner.h.
_NEXT_TUNER = "TF_LIBRA_NCCL_NEXT_TUNER"
_NTHREADS = "NCCL_NTHREADS"
_MIN_CHANNELS = "NCCL_MIN_NCHANNELS"
_MAX_CHANNEL_VARIABLES = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
_GROUPS_APART = "HOROVOD_DISABLE_GROUP_FUSION"


@dataclass(frozen=True)
class NcclSettings:
    """Environment variables for NCCL, set before it starts.

    Attributes:
        threads: the available set R, ascending; empty if there is a problem.
        threads_per_channel: NCCL_NTHREADS.
        variables: names and values that were set.
        user_variables: names and values that the user has set.
        notes: omitted thread counts and other warnings.
        problem: why threads cannot be controlled; None if they can.
    """

    threads: tuple[int, ...]
    threads_per_channel: int
    variables: tuple[tuple[str, str], ...] = ()
    user_variables: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None

    def describe(self) -> str:
        """Returns one line for the settings or the problem, and one for each note."""
        if self.problem is not None:
            return f"NCCL chooses its threads itself: {self.problem}"
        settings = [
            " ".join([what, *(f"{name}={value}" for name, value in pairs)])
            for what, pairs in (("set", self.variables), ("kept", self.user_variables))
            if pairs
        ]
        return "\n".join([f"for NCCL: {'; '.join(settings)}", *self.notes])


def prepare(
    threads: Sequence[int] = THREADS,
    *,
    environ: MutableMapping[str, str] = os.environ,
    nccl_version: int | None = None,
) -> NcclSettings:
    """Sets the variables that NCCL reads when it starts, and logs the settings or the problem.

    Call it before `hvd.init()`, on every rank. Values that the user has set stay.

    Args:
        threads: the set R of thread counts in plans.
        environ: the environment to change.
        nccl_version: version of the NCCL in use, such as 22809; None for Horovod's.

    Raises:
        ValueError: the thread counts are not powers of two that one NCCL_NTHREADS divides.
    """
    problem = None
    multiprocessors = None
    if not PATH.exists():
        problem = f"{PATH.name} was not built; reinstall tf-libra"
    else:
        multiprocessors, problem = _multiprocessors()
    if problem is None:
        problem = _nccl_problem(_horovod_nccl_version() if nccl_version is None else nccl_version)
    settings = environment(
        threads, environ=environ, library=PATH, multiprocessors=multiprocessors, problem=problem
    )
    environ.update(settings.variables)
    log = log_utils.logger(launched_rank(environ))
    (log.info if settings.problem is None else log.warning)("%s", settings.describe())
    return settings


def environment(
    threads: Sequence[int] = THREADS,
    *,
    environ: Mapping[str, str],
    library: Path = PATH,
    multiprocessors: int | None = None,
    problem: str | None = None,
) -> NcclSettings:
    """Derives the settings that `prepare` makes from the environment and the hardware.

    Args:
        threads: the set R of thread counts in plans.
        environ: the current environment.
        library: the plugin.
        multiprocessors: number of the GPU's multiprocessors; a channel is one thread block and
            occupies one of them. None if unknown.
        problem: why threads cannot be controlled; None if they can.

    Raises:
        ValueError: the thread counts are not powers of two that one NCCL_NTHREADS divides.
    """
    wanted = _check_threads(threads)
    user_value = environ.get(_NTHREADS)
    per_channel = int(user_value) if user_value in _NTHREADS_VALUES else threads_per_channel(wanted)
    max_channels, limit = _max_channels(environ, multiprocessors)
    allowed = allowed_threads(wanted, per_channel, max_channels)
    notes = []
    if allowed != wanted:
        left_out = ", ".join(str(r) for r in wanted if r not in allowed)
        notes.append(
            f"threads {left_out} are omitted: not 1 to {max_channels} whole channels of"
            f" {per_channel} threads ({limit})"
        )
    problem = problem or _conflict(environ, library) or (None if allowed else notes[0])
    if problem is not None:
        return NcclSettings(threads=(), threads_per_channel=per_channel, problem=problem)
    most = max(allowed) // per_channel
    values = {
        _PLUGIN: str(library),
        _NTHREADS: str(per_channel),
        # NCCL creates at least the channels that any all-reduce may need.
        _MIN_CHANNELS: str(most),
        # Keeps groups that are ready together from being fused.
        _GROUPS_APART: "1",
    }
    return NcclSettings(
        threads=allowed,
        threads_per_channel=per_channel,
        variables=tuple((n, value) for n, value in values.items() if n not in environ),
        user_variables=tuple(
            (n, environ[n]) for n in (*values, *_MAX_CHANNEL_VARIABLES, _NEXT_TUNER) if n in environ
        ),
        notes=(*notes, *_warnings(environ, most)),
    )


def _max_channels(environ: Mapping[str, str], multiprocessors: int | None) -> tuple[int, str]:
    """Returns the maximum number of channels of an all-reduce, and the reason for it."""
    limits = [(MAX_CHANNELS, f"NCCL has {MAX_CHANNELS} channels")]
    if multiprocessors is not None:
        limits.append((multiprocessors, f"the GPU has {multiprocessors} multiprocessors"))
    for name in _MAX_CHANNEL_VARIABLES:
        if environ.get(name, "").isdecimal():
            limits.append((int(environ[name]), f"{name} is {environ[name]}"))
    return min(limits)


def _conflict(environ: Mapping[str, str], library: Path) -> str | None:
    """Returns the user's setting that prevents thread control; None if there is none."""
    if environ.get(_NTHREADS, "64") not in _NTHREADS_VALUES:
        return f"{_NTHREADS} is {environ[_NTHREADS]}, not one of {', '.join(_NTHREADS_VALUES)}"
    if environ.get(_PLUGIN, str(library)) != str(library):
        return (
            f"{_PLUGIN} names another plugin, {environ[_PLUGIN]}; name it in {_NEXT_TUNER} instead"
        )
    if len(os.fsencode(library)) > _MAX_PATH:
        return f"the path of {library.name} has more than {_MAX_PATH} bytes"
    return None


def _warnings(environ: Mapping[str, str], most: int) -> list[str]:
    """Returns settings, by the user or too late, for which NCCL itself sizes some all-reduces."""
    warnings = []
    min_channels = environ.get(_MIN_CHANNELS, "")
    if min_channels.isdecimal() and int(min_channels) < most:
        warnings.append(
            f"{_MIN_CHANNELS} is {min_channels}: NCCL may create fewer than the {most} channels"
            " that a plan may need"
        )
    if environ.get(_GROUPS_APART) == "0":
        warnings.append(f"{_GROUPS_APART} is 0: NCCL sizes groups that Horovod fuses")
    elif _GROUPS_APART not in environ and _is_horovod_initialized():
        warnings.append(
            f"{_GROUPS_APART}=1 is set after hvd.init(), too late: NCCL sizes groups that Horovod"
            " fuses"
        )
    if environ.get("HOROVOD_AUTOTUNE", "0") not in ("", "0"):
        warnings.append("HOROVOD_AUTOTUNE changes fusion: NCCL sizes such groups")
    return warnings


def threads_per_channel(threads: Sequence[int]) -> int:
    """Returns the largest NCCL_NTHREADS that divides every thread count.

    NCCL has one value per process.

    Raises:
        ValueError: there is no such number.
    """
    wanted = _check_threads(threads)
    divisors = [n for n in THREADS_PER_CHANNEL if all(r % n == 0 for r in wanted)]
    if not divisors:
        raise ValueError(f"threads must be multiples of {THREADS_PER_CHANNEL[0]}, got {wanted}")
    return max(divisors)


def allowed_threads(
    threads: Sequence[int], threads_per_channel: int, max_channels: int = MAX_CHANNELS
) -> tuple[int, ...]:
    """Returns the counts of `threads` that make 1 to `max_channels` whole channels."""
    return tuple(
        r
        for r in _check_threads(threads)
        if r % threads_per_channel == 0 and r // threads_per_channel <= max_channels
    )


def in_use(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the environment makes NCCL load the plugin in this process."""
    return environ.get(_PLUGIN) == str(PATH) and PATH.exists()


def default_threads(environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Returns the default thread counts R: those that the settings of `prepare` allow.

    Powers of two of whole channels, up to the channels that NCCL makes.

    Raises:
        ValueError: `prepare` has not set the environment.
    """
    per_channel = current_threads_per_channel(environ)
    text = environ.get(_MIN_CHANNELS, "")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"{_MIN_CHANNELS} must be a positive number of channels, got {text!r}: call prepare()"
            " before NCCL starts"
        )
    most = min(int(text), MAX_CHANNELS)
    return tuple(per_channel << i for i in range(most.bit_length()))


def statement(environ: Mapping[str, str] = os.environ) -> str:
    """Describes the thread control, which must be equal on all ranks when a plan is activated."""
    if not in_use(environ):
        return "NCCL's own choice"
    next_tuner = f", then {environ[_NEXT_TUNER]}" if environ.get(_NEXT_TUNER) else ""
    return f"plans, {environ.get(_NTHREADS)} threads per channel{next_tuner}"


def current_threads_per_channel(environ: Mapping[str, str] = os.environ) -> int:
    """Returns NCCL_NTHREADS of the environment.

    Raises:
        ValueError: `prepare` has not set the environment.
    """
    text = environ.get(_NTHREADS, "")
    if text not in _NTHREADS_VALUES:
        raise ValueError(
            f"{_NTHREADS} must be one of {THREADS_PER_CHANNEL} in the environment, got {text!r}:"
            " call prepare() before NCCL starts"
        )
    return int(text)


def _check_threads(threads: Sequence[int]) -> tuple[int, ...]:
    counts = {
        validation.integer("threads", r, minimum=1, maximum=validation.MAX_INT32)
        for r in validation.sequence("threads", threads)
    }
    for r in counts:
        if r & (r - 1):
            raise ValueError(f"threads must be powers of two, got {r}")
    if not counts:
        raise ValueError("threads must have at least one number, got ()")
    return tuple(sorted(counts))


def _is_horovod_initialized() -> bool:
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd is not None and bool(hvd.is_initialized())


def _horovod_nccl_version() -> int | str:
    """Returns the version of NCCL in Horovod, 0 for none, or why it is unknown."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        return f"Horovod cannot be imported ({error})"
    return int(hvd.nccl_built())


def _nccl_problem(version: int | str) -> str | None:
    if isinstance(version, str):
        return version
    if version == 0:
        return "Horovod was built without NCCL (HOROVOD_GPU_OPERATIONS=NCCL)"
    if version < _OLDEST_NCCL:
        release = f"{version // 10000}.{version // 100 % 100}"
        return f"NCCL {release} has no tuner interface; install NCCL 2.19 or later"
    return None


def _multiprocessors() -> tuple[int | None, str | None]:
    """Returns the smallest number of multiprocessors of a visible GPU, or why there is none."""
    multiprocessor_count = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "no NVIDIA driver (libcuda.so.1) was found"
    number, device = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number)) or number.value == 0:
        return None, "no NVIDIA GPU was found"
    counts = []
    for index in range(number.value):
        count = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetAttribute(
            ctypes.byref(count), multiprocessor_count, device
        ):
            return None, f"GPU {index} does not answer"
        counts.append(count.value)
    return min(counts), None
