"""Thread counts for NCCL: plans for its tuner plugin, and the plugin's counters of requests.

NCCL's kernels use channels x NCCL_NTHREADS threads. The second is one number per process, set
before NCCL starts (`prepare`). The first is set per all-reduce by `libnccl-tuner-libra.so`
(ops/nccl_tuner), which NCCL loads into this process and which gets a plan here (`apply`).
Neither TensorFlow nor NCCL is needed to import this.
"""

import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_libra.backends import horovod_fusion, nccl_tuner_bindings
from tf_libra.backends.horovod_fusion import Fusion
from tf_libra.internal import log_utils, validation
from tf_libra.specs.plan import Plan, check_whole_tensors

PATH = Path(__file__).resolve().parent.parent / "libnccl-tuner-libra.so"

# LIBRA, section VI: powers of two.
THREADS = (128, 256, 512, 1024, 2048, 4096)
# What NCCL_NTHREADS may be.
THREADS_PER_CHANNEL = (64, 128, 256, 512)
# Of every NCCL since 2.19; newer ones have 64.
MAX_CHANNELS = 32
# NCCL reads no more of a plugin's name.
_MAX_PATH = 254
_OLDEST_NCCL = 21900

_NTHREADS_VALUES = tuple(map(str, THREADS_PER_CHANNEL))
_PLUGIN = "NCCL_TUNER_PLUGIN"
_NTHREADS = "NCCL_NTHREADS"
_MIN_CHANNELS = "NCCL_MIN_NCHANNELS"
_MAX_CHANNEL_VARIABLES = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
_GROUPS_APART = "HOROVOD_DISABLE_GROUP_FUSION"


@dataclass(frozen=True)
class NcclSettings:
    """Settings of the environment, made before NCCL starts.

    Attributes:
        threads: the set R that can be had, ascending; empty where there is a problem.
        threads_per_channel: NCCL_NTHREADS.
        variables: names and values that were set.
        kept: names and values that the user had set, and that stay.
        notes: what was left out, and why.
        problem: why there is no thread control; None where there is.
    """

    threads: tuple[int, ...]
    threads_per_channel: int
    variables: tuple[tuple[str, str], ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None

    def describe(self) -> str:
        """One line for what was set, or for what is missing; another for each note."""
        if self.problem is not None:
            return f"NCCL chooses its threads itself: {self.problem}"
        told = [
            " ".join([what, *(f"{name}={value}" for name, value in pairs)])
            for what, pairs in (("set", self.variables), ("kept", self.kept))
            if pairs
        ]
        return "\n".join([f"for NCCL: {'; '.join(told)}", *self.notes])


@dataclass(frozen=True)
class NcclAllReduce:
    """An all-reduce as Horovod will request it from NCCL.

    Attributes:
        group: index of the plan's group.
        num_bytes: the sum of its tensors.
        padded_bytes: the same as it is in the fusion buffer.
        num_channels: how many channels it is to have.
    """

    group: int
    num_bytes: int
    padded_bytes: int
    num_channels: int


@dataclass(frozen=True)
class ChannelCounters:
    """Counts of NCCL's requests to the tuner since the process began.

    Attributes:
        interface_version: of the tuner interface that NCCL came by; 0: it never came.
        communicators: alive.
        asked: requests; each was either applied or passed over.
        applied: answered with the plan's channels.
        passed_over: left to NCCL, for one of the four reasons that follow.
        no_plan: no plan was active.
        other_collective: no all-reduce.
        other_communicator: another number of ranks than the plan's.
        unknown_size: the plan has no all-reduce of this size.
        out_of_order: applied, and not the one that was next.
        without_ring: applied, though NCCL offered no ring algorithm, so that threads per channel
            are not those of NCCL_NTHREADS.
        all_reduces: how often each all-reduce of the active plan was applied, in its order.
    """

    interface_version: int
    communicators: int
    asked: int
    applied: int
    passed_over: int
    no_plan: int
    other_collective: int
    other_communicator: int
    unknown_size: int
    out_of_order: int
    without_ring: int
    all_reduces: tuple[int, ...] = ()

    def describe(self) -> str:
        """One line."""
        if self.interface_version == 0:
            return "NCCL has not asked the tuner for anything yet"
        text = (
            f"NCCL asked {self.asked} times (tuner interface v{self.interface_version}):"
            f" {self.applied} had the plan's channels, {self.passed_over} were left to NCCL"
        )
        reasons = (
            (self.no_plan, "before there was a plan"),
            (self.other_collective, "no all-reduce"),
            (self.other_communicator, "among other ranks"),
            (self.unknown_size, "of a size that the plan does not have"),
            (self.out_of_order, "of the plan's came out of order"),
            (self.without_ring, "of the plan's had no ring"),
        )
        told = [f"{count} {why}" for count, why in reasons if count]
        return f"{text} ({', '.join(told)})" if told else text


def prepare(
    threads: Sequence[int] = THREADS,
    *,
    environ: MutableMapping[str, str] = os.environ,
    nccl_version: int | None = None,
) -> NcclSettings:
    """Sets what NCCL reads when it starts, and logs what was set, or what is missing.

    Call it before `hvd.init()`, on every rank. What the user has set is kept.

    Args:
        threads: the numbers of threads R that plans may ask for.
        environ: where to set it.
        nccl_version: of the NCCL that will be used, such as 22809; None: that of Horovod.

    Raises:
        ValueError: the threads are no powers of two that one NCCL_NTHREADS divides.
    """
    problem = None
    multiprocessors = None
    if not PATH.exists():
        problem = f"{PATH.name} was not built; install tf-libra again"
    else:
        multiprocessors, problem = _multiprocessors()
    if problem is None:
        problem = _nccl_problem(_horovods_nccl() if nccl_version is None else nccl_version)
    settings = environment(
        threads, environ=environ, library=PATH, multiprocessors=multiprocessors, problem=problem
    )
    environ.update(settings.variables)
    log = log_utils.of_launched(environ)
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
        threads: the numbers of threads R that plans may ask for.
        environ: the environment as it is.
        library: the plugin.
        multiprocessors: of the GPU; a channel is one thread block, and takes one of them. None: not
            known.
        problem: why there can be no thread control.

    Raises:
        ValueError: the threads are no powers of two that one NCCL_NTHREADS divides.
    """
    wanted = _check_threads(threads)
    given = environ.get(_NTHREADS)
    per_channel = int(given) if given in _NTHREADS_VALUES else threads_per_channel(wanted)
    max_channels, why = _most_channels(environ, multiprocessors)
    allowed = allowed_threads(wanted, per_channel, max_channels)
    notes = []
    if allowed != wanted:
        left_out = ", ".join(str(r) for r in wanted if r not in allowed)
        notes.append(
            f"threads {left_out} are left out: they are no 1 to {max_channels} channels of"
            f" {per_channel} threads ({why})"
        )
    problem = problem or _conflict(environ, library) or (None if allowed else notes[0])
    if problem is not None:
        return NcclSettings(threads=(), threads_per_channel=per_channel, problem=problem)
    most = max(allowed) // per_channel
    values = {
        _PLUGIN: str(library),
        _NTHREADS: str(per_channel),
        # As many as any all-reduce may be given: of fewer, NCCL would make none.
        _MIN_CHANNELS: str(most),
        # Groups that become ready together stay all-reduces of their own.
        _GROUPS_APART: "1",
    }
    return NcclSettings(
        threads=allowed,
        threads_per_channel=per_channel,
        variables=tuple((n, value) for n, value in values.items() if n not in environ),
        kept=tuple((n, environ[n]) for n in (*values, *_MAX_CHANNEL_VARIABLES) if n in environ),
        notes=(*notes, *_warnings(environ, most)),
    )


def _most_channels(environ: Mapping[str, str], multiprocessors: int | None) -> tuple[int, str]:
    """Returns the number of channels that an all-reduce may have, and what bounds it."""
    limits = [(MAX_CHANNELS, f"NCCL has {MAX_CHANNELS} channels")]
    if multiprocessors is not None:
        limits.append((multiprocessors, f"the GPU has {multiprocessors} multiprocessors"))
    for name in _MAX_CHANNEL_VARIABLES:
        if environ.get(name, "").isdecimal():
            limits.append((int(environ[name]), f"{name} is {environ[name]}"))
    return min(limits)


def _conflict(environ: Mapping[str, str], library: Path) -> str | None:
    """Names the setting of the user that prevents thread control; None if there is none."""
    if environ.get(_NTHREADS, "64") not in _NTHREADS_VALUES:
        return f"{_NTHREADS} is {environ[_NTHREADS]}, not one of {', '.join(_NTHREADS_VALUES)}"
    if environ.get(_PLUGIN, str(library)) != str(library):
        return f"{_PLUGIN} names another plugin, {environ[_PLUGIN]}"
    if len(os.fsencode(library)) > _MAX_PATH:
        return f"the path of {library.name} has more than {_MAX_PATH} bytes"
    return None


def _warnings(environ: Mapping[str, str], most: int) -> list[str]:
    """Lists settings, made by the user or too late, that leave some all-reduces to NCCL."""
    warnings = []
    min_channels = environ.get(_MIN_CHANNELS, "")
    if min_channels.isdecimal() and int(min_channels) < most:
        warnings.append(
            f"{_MIN_CHANNELS} is {min_channels}: NCCL may make fewer than the {most} channels that"
            " a plan may ask for"
        )
    if environ.get(_GROUPS_APART) == "0":
        warnings.append(f"{_GROUPS_APART} is 0: groups that Horovod fuses are left to NCCL")
    elif _GROUPS_APART not in environ and _horovod_runs():
        warnings.append(
            f"{_GROUPS_APART}=1 comes too late, after hvd.init(): groups that Horovod fuses are"
            " left to NCCL"
        )
    if environ.get("HOROVOD_AUTOTUNE", "0") not in ("", "0"):
        warnings.append("HOROVOD_AUTOTUNE changes what is fused: such groups are left to NCCL")
    return warnings


def threads_per_channel(threads: Sequence[int]) -> int:
    """NCCL_NTHREADS: the most threads per channel of which every number is a multiple.

    One number serves all, since NCCL has one per process.

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


def all_reduces(plan: Plan, threads_per_channel: int, fusion: Fusion) -> tuple[NcclAllReduce, ...]:
    """Returns the all-reduces of NCCL in one step of a plan, in order.

    A group is one all-reduce per dtype; one that does not fit into the fusion buffer is filled into
    it tensor by tensor, as often as it takes. Groups of 0 bytes are not launched.

    Raises:
        ValueError: a group's threads are not a multiple of `threads_per_channel`, or the plan cuts
            tensors.
    """
    check_whole_tensors(plan, "Horovod on NCCL")
    asked = []
    for index, group in enumerate(plan.groups):
        if group.num_threads % threads_per_channel:
            raise ValueError(
                f"groups[{index}].num_threads must be a multiple of {_NTHREADS}"
                f" {threads_per_channel}, got {group.num_threads}"
            )
        channels = group.num_threads // threads_per_channel
        by_dtype: dict[str | None, list[int]] = {}
        for tensor in range(group.start, group.stop):
            dtype = None if plan.dtypes is None else plan.dtypes[tensor]
            by_dtype.setdefault(dtype, []).append(plan.num_bytes[tensor])
        for sizes in by_dtype.values():
            for part in fusion.parts(sizes):
                exact = sum(part)
                padded = exact if len(part) == 1 else sum(map(fusion.padded, part))
                if exact:
                    asked.append(NcclAllReduce(index, exact, padded, channels))
    return tuple(asked)


def apply(
    plan: Plan,
    *,
    threads_per_channel: int | None = None,
    fusion: Fusion | None = None,
    prefer_ring: bool = True,
) -> None:
    """Activates a plan, immediately and as a whole.

    Call it between the same two steps on every rank, or on none: ranks that run one all-reduce with
    different channels wait forever.

    Args:
        plan: whose groups will be all-reduced, on as many ranks as it was made for.
        threads_per_channel: None: NCCL_NTHREADS of the environment.
        fusion: how groups become all-reduces; None: as Horovod does it.
        prefer_ring: NCCL is made to take its ring algorithm where it can (from NCCL 2.22 on), whose
            channels have NCCL_NTHREADS threads. Trees and NVLS have a number of their own.

    Raises:
        ImportError: the plugin was not built.
        ValueError: a group's threads are not a multiple of `threads_per_channel`.
    """
    if threads_per_channel is None:
        threads_per_channel = _environments_threads_per_channel()
    if fusion is None:
        fusion = horovod_fusion.of_environment(on_gpu=True)
    asked = all_reduces(plan, threads_per_channel, fusion)
    library = nccl_tuner_bindings.load(PATH)
    if not asked:
        library.clear_plan()
        return
    library.set_plan(
        plan.num_workers,
        prefer_ring,
        [(one.num_bytes, one.padded_bytes, one.num_channels) for one in asked],
    )


def clear() -> None:
    """Leaves every collective to NCCL again.

    Raises:
        ImportError: the plugin was not built.
    """
    nccl_tuner_bindings.load(PATH).clear_plan()


def begin_step() -> None:
    """Says that the next all-reduce is the first of a step.

    After a step that was cut short, the order is found again by the groups' sizes where these
    differ; where they do not, by this. Call it on every rank before the same steps.

    Raises:
        ImportError: the plugin was not built.
    """
    nccl_tuner_bindings.load(PATH).begin_step()


def in_use(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the environment makes NCCL load the plugin in this process."""
    return environ.get(_PLUGIN) == str(PATH) and PATH.exists()


def default_threads(environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Returns the default thread counts R: those that the settings of `prepare` allow.

    Powers of two of whole channels, up to the channels that NCCL makes.

    Raises:
        ValueError: the environment is not what `prepare` leaves.
    """
    per_channel = _environments_threads_per_channel(environ)
    text = environ.get(_MIN_CHANNELS, "")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"{_MIN_CHANNELS} must be a number of channels, got {text!r}: call prepare() before"
            " NCCL starts"
        )
    most = min(int(text), MAX_CHANNELS)
    return tuple(per_channel << i for i in range(most.bit_length()))


def announce_step() -> None:
    """`begin_step`, where NCCL of this process has the plugin."""
    if in_use():
        begin_step()


def statement(environ: Mapping[str, str] = os.environ) -> str:
    """Returns what has to be the same on every rank before a plan is activated."""
    if not in_use(environ):
        return "NCCL's own choice"
    return f"plans, {environ.get(_NTHREADS)} threads per channel"


def counters() -> ChannelCounters:
    """Returns the counts of NCCL's requests so far, and of the answers.

    Raises:
        ImportError: the plugin was not built.
    """
    library = nccl_tuner_bindings.load(PATH)
    return ChannelCounters(**library.counts(), all_reduces=library.applied())


def _environments_threads_per_channel(environ: Mapping[str, str] = os.environ) -> int:
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
        raise ValueError("threads must hold at least one number, got ()")
    return tuple(sorted(counts))


def _horovod_runs() -> bool:
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd is not None and bool(hvd.is_initialized())


def _horovods_nccl() -> int | str:
    """The version of NCCL that Horovod was built with, 0 for none; or why that is not known."""
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
        return f"NCCL {version // 10000}.{version // 100 % 100} takes no tuner; 2.19 and later do"
    return None


def _multiprocessors() -> tuple[int | None, str | None]:
    """The fewest multiprocessors of a visible GPU, or why there is none."""
    multiprocessor_count = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "there is no NVIDIA driver (libcuda.so.1)"
    number, device = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number)) or number.value == 0:
        return None, "there is no NVIDIA GPU"
    counts = []
    for index in range(number.value):
        count = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetAttribute(
            ctypes.byref(count), multiprocessor_count, device
        ):
            return None, f"GPU {index} does not answer"
        counts.append(count.value)
    return min(counts), None
