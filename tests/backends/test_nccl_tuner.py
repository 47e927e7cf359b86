"""The environment of NCCL and the table of a plan's groups; without a GPU."""

import dataclasses
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_libra
from tests.worker_processes import Job
from tf_libra import strategies
from tf_libra.backends import nccl_tuner
from tf_libra.backends.horovod_backend import Horovod
from tf_libra.backends.horovod_fusion import Fusion
from tf_libra.nccl import ChannelCounters, NcclAllReduce
from tf_libra.specs.plan import Plan, TensorGroup

PLUGIN = Path("/somewhere/libnccl-tuner-libra.so")


def settings_of(
    environ: dict[str, str],
    threads: tuple[int, ...] = nccl_tuner.THREADS,
    multiprocessors: int | None = None,
) -> nccl_tuner.NcclSettings:
    return nccl_tuner.environment(
        threads, environ=environ, library=PLUGIN, multiprocessors=multiprocessors
    )


def plan_of(
    *groups: tuple[list[int], int], dtypes: tuple[str, ...] | None = None, num_workers: int = 8
) -> Plan:
    """A plan of groups: the tensors' bytes and the threads."""
    sizes = [size for tensors, _ in groups for size in tensors]
    ends = [sum(len(tensors) for tensors, _ in groups[: i + 1]) for i in range(len(groups))]
    return Plan(
        groups=tuple(
            TensorGroup(end - len(tensors), end, threads)
            for (tensors, threads), end in zip(groups, ends, strict=True)
        ),
        tensor_names=tuple(f"t{i}" for i in range(len(sizes))),
        num_bytes=tuple(sizes),
        num_workers=num_workers,
        strategy="test",
        dtypes=dtypes,
    )


# R and NCCL_NTHREADS


def test_the_papers_threads_are_1_to_32_channels() -> None:
    assert nccl_tuner.threads_per_channel(nccl_tuner.THREADS) == 128
    assert nccl_tuner.allowed_threads(nccl_tuner.THREADS, 128) == nccl_tuner.THREADS


@pytest.mark.parametrize(
    ("threads", "expected"),
    [((64, 4096), 64), ((256,), 256), ((512, 1024), 512), ((4096, 2048), 512), ((128, 512), 128)],
)
def test_every_thread_count_is_whole_channels(threads: tuple[int, ...], expected: int) -> None:
    assert nccl_tuner.threads_per_channel(threads) == expected


@given(st.sets(st.sampled_from([2**i for i in range(6, 16)]), min_size=1))
def test_threads_per_channel_divide_all_and_no_larger_number_does(threads: set[int]) -> None:
    chosen = nccl_tuner.threads_per_channel(tuple(threads))
    divisors = [n for n in (64, 128, 256, 512) if not any(r % n for r in threads)]
    assert chosen == divisors[-1]


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ((), "threads must hold at least one number"),
        ((32, 128), r"threads must be multiples of 64, got \(32, 128\)"),
        ((128, 192), "threads must be powers of two, got 192"),
        ((0,), "threads must be .*1"),
        (("128",), "threads must be"),
    ],
)
def test_other_threads_are_refused(threads: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nccl_tuner.threads_per_channel(threads)


# The environment


def test_everything_is_set_where_nothing_was() -> None:
    settings = settings_of({}, multiprocessors=132)
    assert settings.problem is None
    assert settings.threads == nccl_tuner.THREADS
    assert dict(settings.variables) == {
        "NCCL_TUNER_PLUGIN": str(PLUGIN),
        "NCCL_NTHREADS": "128",
        "NCCL_MIN_NCHANNELS": "32",
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
    }
    assert settings.kept == settings.notes == ()
    for name, value in settings.variables:
        assert f"{name}={value}" in settings.describe()


def test_twice_is_as_once() -> None:
    once = settings_of({}, multiprocessors=132)
    twice = settings_of(dict(once.variables), multiprocessors=132)
    assert (twice.threads, twice.threads_per_channel) == (once.threads, once.threads_per_channel)
    assert twice.variables == twice.notes == ()
    assert twice.kept == once.variables
    assert twice.describe() == once.describe().replace("set", "kept", 1)


def test_a_small_gpu_has_fewer_threads() -> None:
    settings = settings_of({}, multiprocessors=20)
    assert settings.threads == (128, 256, 512, 1024, 2048)
    assert dict(settings.variables)["NCCL_MIN_NCHANNELS"] == "16"
    assert settings.notes == (
        "threads 4096 are left out: they are no 1 to 20 channels of 128 threads"
        " (the GPU has 20 multiprocessors)",
    )


def test_what_the_user_set_is_kept() -> None:
    environ = {
        "NCCL_NTHREADS": "512",
        "NCCL_MAX_NCHANNELS": "4",
        "NCCL_MIN_NCHANNELS": "2",
        "HOROVOD_DISABLE_GROUP_FUSION": "0",
        "HOROVOD_AUTOTUNE": "1",
    }
    settings = settings_of(environ)
    assert settings.threads == (512, 1024, 2048)
    assert settings.threads_per_channel == 512
    assert dict(settings.variables) == {"NCCL_TUNER_PLUGIN": str(PLUGIN)}
    assert dict(settings.kept) == {k: v for k, v in environ.items() if k != "HOROVOD_AUTOTUNE"}
    notes = "\n".join(settings.notes)
    assert "threads 128, 256, 4096 are left out" in notes
    assert "NCCL_MIN_NCHANNELS is 2: NCCL may make fewer than the 4 channels" in notes
    assert "HOROVOD_DISABLE_GROUP_FUSION is 0" in notes
    assert "HOROVOD_AUTOTUNE" in notes
    assert "kept NCCL_NTHREADS=512" in settings.describe()


@pytest.mark.parametrize(
    ("environ", "threads", "problem"),
    [
        ({"NCCL_NTHREADS": "96"}, (128,), "NCCL_NTHREADS is 96, not one of 64, 128, 256, 512"),
        ({"NCCL_TUNER_PLUGIN": "/other.so"}, (128,), "NCCL_TUNER_PLUGIN names another plugin"),
        ({"NCCL_NTHREADS": "512"}, (128, 256), "threads 128, 256 are left out"),
        ({"NCCL_MAX_CTAS": "1"}, (64, 4096), None),
        ({"NCCL_MAX_CTAS": "0"}, (64, 4096), "NCCL_MAX_CTAS is 0"),
    ],
)
def test_what_stands_in_the_way_is_one_line(
    environ: dict[str, str], threads: tuple[int, ...], problem: str | None
) -> None:
    settings = settings_of(environ, threads)
    if problem is None:
        assert settings.problem is None
        return
    assert settings.problem is not None and problem in settings.problem
    assert settings.variables == settings.threads == ()
    assert len(settings.describe().splitlines()) == 1
    assert settings.describe().startswith("NCCL chooses its threads itself: ")


def test_a_path_that_nccl_would_cut_off() -> None:
    settings = nccl_tuner.environment(environ={}, library=Path("/" + "x" * 250) / PLUGIN.name)
    assert settings.problem is not None and "more than 254 bytes" in settings.problem


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (0, "Horovod was built without NCCL"),
        (21805, "NCCL 2.18 takes no tuner"),
        (21903, None),
        (23203, None),
    ],
)
def test_nccl_versions(version: int, problem: str | None) -> None:
    found = nccl_tuner._nccl_problem(version)
    assert found == problem if problem is None else problem in str(found)


def test_without_a_gpu_one_line_is_logged_and_nothing_is_set(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a GPU there is nothing to say of one, and Horovod here has no NCCL."""
    monkeypatch.setattr(logging.getLogger("tf_libra"), "propagate", True)
    environ: dict[str, str] = {}
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        settings = nccl_tuner.prepare(environ=environ, nccl_version=0)
    assert settings.problem is not None
    assert environ == {}
    [record] = caplog.records
    assert record.getMessage() == f"NCCL chooses its threads itself: {settings.problem}"


def test_a_plan_needs_an_environment_that_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_NTHREADS", raising=False)
    with pytest.raises(ValueError, match=r"NCCL_NTHREADS must be one of .* call prepare\(\)"):
        nccl_tuner.apply(plan_of(([4], 128)))
    monkeypatch.setenv("NCCL_NTHREADS", "128")
    nccl_tuner.apply(plan_of(([4], 128), ([8], 256)))
    try:
        assert nccl_tuner.counters().all_reduces == (0, 0)
        nccl_tuner.apply(plan_of(([0], 128)))
        assert nccl_tuner.counters().all_reduces == ()
    finally:
        nccl_tuner.clear()


def test_what_ranks_compare() -> None:
    plugin = {"NCCL_TUNER_PLUGIN": str(nccl_tuner.PATH)}
    statements = [
        nccl_tuner.statement(environ)
        for environ in (
            {},
            {"NCCL_TUNER_PLUGIN": "/other.so", "NCCL_NTHREADS": "128"},
            plugin | {"NCCL_NTHREADS": "128"},
            plugin | {"NCCL_NTHREADS": "512"},
        )
    ]
    assert statements[0] == statements[1] == "NCCL's own choice"
    assert len(set(statements)) == 3


# Groups as Horovod all-reduces them


def test_groups_become_all_reduces() -> None:
    fusion = Fusion(buffer_bytes=100, padding=16)
    plan = plan_of(([20, 4], 256), ([7], 128), ([0, 0], 128), ([40, 40, 40], 512))
    assert nccl_tuner.all_reduces(plan, 128, fusion) == (
        NcclAllReduce(group=0, num_bytes=24, padded_bytes=48, num_channels=2),
        NcclAllReduce(group=1, num_bytes=7, padded_bytes=7, num_channels=1),
        NcclAllReduce(group=3, num_bytes=80, padded_bytes=96, num_channels=4),
        NcclAllReduce(group=3, num_bytes=40, padded_bytes=40, num_channels=4),
    )
    assert [a.num_bytes for a in nccl_tuner.all_reduces(plan, 128, Fusion())] == [24, 7, 120]


def test_a_tensor_larger_than_the_buffer_goes_alone() -> None:
    plan = plan_of(([8, 200, 8, 8], 128))
    parts = nccl_tuner.all_reduces(plan, 128, Fusion(buffer_bytes=64))
    assert [part.num_bytes for part in parts] == [8, 200, 16]


def test_dtypes_are_all_reduced_apart() -> None:
    plan = plan_of(([8, 2, 16, 4], 128), dtypes=("float32", "float16", "float32", "float16"))
    parts = nccl_tuner.all_reduces(plan, 128, Fusion(padding=16))
    assert [(part.num_bytes, part.padded_bytes) for part in parts] == [(24, 32), (6, 32)]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 100),
    st.sampled_from([1, 16]),
)
def test_every_byte_is_asked_for_and_no_part_overflows(
    sizes: list[int], buffer_bytes: int, padding: int
) -> None:
    parts = nccl_tuner.all_reduces(plan_of((sizes, 128)), 128, Fusion(buffer_bytes, padding))
    assert sum(part.num_bytes for part in parts) == sum(sizes)
    assert all(
        part.padded_bytes <= buffer_bytes or part.padded_bytes == part.num_bytes for part in parts
    )
    # As few parts as filling in order can make: two neighbours never fit together.
    for left, right in itertools.pairwise(parts):
        assert left.padded_bytes + right.padded_bytes + 2 * padding > buffer_bytes


def test_counters_in_words() -> None:
    zero = ChannelCounters(**{field.name: 0 for field in dataclasses.fields(ChannelCounters)[:-1]})
    assert zero.describe() == "NCCL has not asked the tuner for anything yet"
    some = dataclasses.replace(zero, interface_version=5, asked=10, applied=10)
    assert some.describe() == (
        "NCCL asked 10 times (tuner interface v5): 10 had the plan's channels, 0 were left to NCCL"
    )
    more = dataclasses.replace(some, asked=13, passed_over=3, unknown_size=3, out_of_order=1)
    assert more.describe().endswith(
        "3 were left to NCCL (3 of a size that the plan does not have,"
        " 1 of the plan's came out of order)"
    )


# Without a number of threads


def prepared(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...] = nccl_tuner.THREADS
) -> None:
    """The environment as `prepare` leaves it on a large GPU."""
    for name in ("NCCL_TUNER_PLUGIN", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    settings = nccl_tuner.environment(threads, environ={}, multiprocessors=132)
    for name, value in settings.variables:
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "threads", [nccl_tuner.THREADS, (512, 1024, 2048), (256,), (512, 1024, 2048, 4096, 8192)]
)
def test_default_threads_are_those_that_were_prepared(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...]
) -> None:
    prepared(monkeypatch, threads)
    assert nccl_tuner.default_threads() == threads


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("libra", strategies.Libra(threads=nccl_tuner.THREADS)),
        ("libra-m", strategies.LibraM(threads=nccl_tuner.THREADS)),
        (
            strategies.Libra(max_groups=3),
            strategies.Libra(threads=nccl_tuner.THREADS, max_groups=3),
        ),
        ("wfbp", strategies.Wfbp(num_threads=4096)),
    ],
)
def test_default_threads_are_the_backends(
    monkeypatch: pytest.MonkeyPatch,
    strategy: strategies.Strategy | str,
    expected: strategies.Strategy,
) -> None:
    options = tf_libra.optimize(strategy, engine="horovod").keywords["options"]
    assert options.default_threads
    prepared(monkeypatch)
    found = Horovod().default_threads(options.strategy)
    assert found == expected
    assert Horovod().applicable(found) == expected
    monkeypatch.delenv("NCCL_TUNER_PLUGIN")
    assert Horovod().default_threads(options.strategy) == options.strategy


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("libra", {"threads": (1, 2, 4)}),
        (strategies.Libra(threads=(256, 512)), {}),
        (strategies.Wfbp(num_threads=256), {}),
    ],
)
def test_threads_that_somebody_has_said_stay(
    strategy: strategies.Strategy | str, options: dict[str, object]
) -> None:
    found = tf_libra.optimize(strategy, engine="horovod", **options)  # type: ignore[arg-type]
    assert not found.keywords["options"].default_threads


def test_script_needs_no_threads_after_prepare(run_job: Callable[..., Job]) -> None:
    """On Gloo, which takes none: what the plan asks for is handed to NCCL all the same."""
    settings = nccl_tuner.environment(environ={}, multiprocessors=132)
    job = run_job("nccl_threads.py", 2, env=dict(settings.variables))
    for rank in range(2):
        value = job.value("default_threads", rank)
        assert value["phase"] == "run"
        assert set(value["threads"]) <= set(nccl_tuner.THREADS)
        assert value["measured"]
        assert set(value["measured"]) <= set(nccl_tuner.THREADS)
