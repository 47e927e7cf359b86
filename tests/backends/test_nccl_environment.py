"""The environment of NCCL, without a GPU."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_libra
from tests.worker_processes import Job
from tf_libra import strategies
from tf_libra.backends import nccl_environment
from tf_libra.backends.horovod_backend import Horovod

PLUGIN = Path("/somewhere/libnccl-tuner-libra.so")


def settings_of(
    environ: dict[str, str],
    threads: tuple[int, ...] = nccl_environment.THREADS,
    multiprocessors: int | None = None,
) -> nccl_environment.NcclSettings:
    return nccl_environment.environment(
        threads, environ=environ, library=PLUGIN, multiprocessors=multiprocessors
    )


# R and NCCL_NTHREADS


def test_threads_of_the_paper_are_1_to_32_channels() -> None:
    assert nccl_environment.threads_per_channel(nccl_environment.THREADS) == 128
    assert (
        nccl_environment.allowed_threads(nccl_environment.THREADS, 128) == nccl_environment.THREADS
    )


@pytest.mark.parametrize(
    ("threads", "expected"),
    [((64, 4096), 64), ((256,), 256), ((512, 1024), 512), ((4096, 2048), 512), ((128, 512), 128)],
)
def test_every_thread_count_is_whole_channels(threads: tuple[int, ...], expected: int) -> None:
    assert nccl_environment.threads_per_channel(threads) == expected


@given(st.sets(st.sampled_from([2**i for i in range(6, 16)]), min_size=1))
def test_threads_per_channel_divide_all_and_no_larger_number_does(threads: set[int]) -> None:
    chosen = nccl_environment.threads_per_channel(tuple(threads))
    divisors = [n for n in (64, 128, 256, 512) if not any(r % n for r in threads)]
    assert chosen == divisors[-1]


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ((), "threads must have at least one number"),
        ((32, 128), r"threads must be multiples of 64, got \(32, 128\)"),
        ((128, 192), "threads must be powers of two, got 192"),
        ((0,), "threads must be .*1"),
        (("128",), "threads must be"),
    ],
)
def test_invalid_threads_are_rejected(threads: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nccl_environment.threads_per_channel(threads)


# The environment


def test_empty_environment_gets_every_variable() -> None:
    settings = settings_of({}, multiprocessors=132)
    assert settings.problem is None
    assert settings.threads == nccl_environment.THREADS
    assert dict(settings.variables) == {
        "NCCL_TUNER_PLUGIN": str(PLUGIN),
        "NCCL_NTHREADS": "128",
        "NCCL_MIN_NCHANNELS": "32",
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
    }
    assert settings.user_variables == settings.notes == ()
    for name, value in settings.variables:
        assert f"{name}={value}" in settings.describe()


def test_preparing_twice_changes_nothing() -> None:
    once = settings_of({}, multiprocessors=132)
    twice = settings_of(dict(once.variables), multiprocessors=132)
    assert (twice.threads, twice.threads_per_channel) == (once.threads, once.threads_per_channel)
    assert twice.variables == twice.notes == ()
    assert twice.user_variables == once.variables
    assert twice.describe() == once.describe().replace("set", "kept", 1)


def test_small_gpu_limits_the_threads() -> None:
    settings = settings_of({}, multiprocessors=20)
    assert settings.threads == (128, 256, 512, 1024, 2048)
    assert dict(settings.variables)["NCCL_MIN_NCHANNELS"] == "16"
    assert settings.notes == (
        "threads 4096 are omitted: not 1 to 20 whole channels of 128 threads"
        " (the GPU has 20 multiprocessors)",
    )


def test_values_of_the_user_stay() -> None:
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
    assert dict(settings.user_variables) == {
        k: v for k, v in environ.items() if k != "HOROVOD_AUTOTUNE"
    }
    notes = "\n".join(settings.notes)
    assert "threads 128, 256, 4096 are omitted" in notes
    assert "NCCL_MIN_NCHANNELS is 2: NCCL may create fewer than the 4 channels" in notes
    assert "HOROVOD_DISABLE_GROUP_FUSION is 0" in notes
    assert "HOROVOD_AUTOTUNE" in notes
    assert "kept NCCL_NTHREADS=512" in settings.describe()


@pytest.mark.parametrize(
    ("environ", "threads", "problem"),
    [
        ({"NCCL_NTHREADS": "96"}, (128,), "NCCL_NTHREADS is 96, not one of 64, 128, 256, 512"),
        ({"NCCL_TUNER_PLUGIN": "/other.so"}, (128,), "NCCL_TUNER_PLUGIN names another plugin"),
        ({"NCCL_NTHREADS": "512"}, (128, 256), "threads 128, 256 are omitted"),
        ({"NCCL_MAX_CTAS": "1"}, (64, 4096), None),
        ({"NCCL_MAX_CTAS": "0"}, (64, 4096), "NCCL_MAX_CTAS is 0"),
    ],
)
def test_conflicting_setting_is_reported_in_one_line(
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


def test_long_plugin_path_is_reported() -> None:
    settings = nccl_environment.environment(environ={}, library=Path("/" + "x" * 250) / PLUGIN.name)
    assert settings.problem is not None and "more than 254 bytes" in settings.problem


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (0, "Horovod was built without NCCL"),
        (21805, "NCCL 2.18 has no tuner"),
        (21903, None),
        (23203, None),
    ],
)
def test_old_nccl_is_reported(version: int, problem: str | None) -> None:
    found = nccl_environment._nccl_problem(version)
    assert found == problem if problem is None else problem in str(found)


def test_without_a_gpu_one_line_is_logged_and_nothing_is_set(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a GPU there is nothing to say of one, and Horovod here has no NCCL."""
    monkeypatch.setattr(logging.getLogger("tf_libra"), "propagate", True)
    environ: dict[str, str] = {}
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        settings = nccl_environment.prepare(environ=environ, nccl_version=0)
    assert settings.problem is not None
    assert environ == {}
    [record] = caplog.records
    assert record.getMessage() == f"NCCL chooses its threads itself: {settings.problem}"


def test_statement_names_the_threads_per_channel() -> None:
    plugin = {"NCCL_TUNER_PLUGIN": str(nccl_environment.PATH)}
    statements = [
        nccl_environment.statement(environ)
        for environ in (
            {},
            {"NCCL_TUNER_PLUGIN": "/other.so", "NCCL_NTHREADS": "128"},
            plugin | {"NCCL_NTHREADS": "128"},
            plugin | {"NCCL_NTHREADS": "512"},
            plugin | {"NCCL_NTHREADS": "512", "TF_LIBRA_NCCL_NEXT_TUNER": "/other.so"},
        )
    ]
    assert statements[0] == statements[1] == "NCCL's own choice"
    assert len(set(statements)) == 4


def test_next_tuner_is_named_with_the_settings() -> None:
    next_tuner = ("TF_LIBRA_NCCL_NEXT_TUNER", "/other.so")
    assert next_tuner in settings_of(dict([next_tuner])).user_variables


# Without a number of threads


def prepared(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...] = nccl_environment.THREADS
) -> None:
    """The environment as `prepare` leaves it on a large GPU."""
    for name in ("NCCL_TUNER_PLUGIN", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    settings = nccl_environment.environment(threads, environ={}, multiprocessors=132)
    for name, value in settings.variables:
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "threads", [nccl_environment.THREADS, (512, 1024, 2048), (256,), (512, 1024, 2048, 4096, 8192)]
)
def test_default_threads_are_the_prepared_ones(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...]
) -> None:
    prepared(monkeypatch, threads)
    assert nccl_environment.default_threads() == threads


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("libra", strategies.Libra(threads=nccl_environment.THREADS)),
        ("libra-m", strategies.LibraM(threads=nccl_environment.THREADS)),
        (
            strategies.Libra(max_groups=3),
            strategies.Libra(threads=nccl_environment.THREADS, max_groups=3),
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
    prepared(monkeypatch)
    assert options.with_backend_threads().strategy == expected
    found = Horovod().default_threads(options.strategy)
    assert found == expected
    assert Horovod().applicable(found) == expected
    monkeypatch.delenv("NCCL_TUNER_PLUGIN")
    assert Horovod().default_threads(options.strategy) == options.strategy


@pytest.mark.parametrize(
    "strategy", [strategies.Libra(threads=(256, 512)), strategies.Wfbp(num_threads=256)]
)
def test_threads_of_the_user_stay(
    monkeypatch: pytest.MonkeyPatch, strategy: strategies.Strategy
) -> None:
    found = tf_libra.optimize(strategy, engine="horovod").keywords["options"]
    prepared(monkeypatch)
    assert found.with_backend_threads().strategy == found.strategy


def test_script_needs_no_threads_after_prepare(run_job: Callable[..., Job]) -> None:
    """On Gloo, which takes none: what the plan asks for is handed to NCCL all the same."""
    settings = nccl_environment.environment(environ={}, multiprocessors=132)
    job = run_job("nccl_threads.py", 2, env=dict(settings.variables))
    for rank in range(2):
        value = job.value("default_threads", rank)
        assert value["phase"] == "run"
        assert set(value["threads"]) <= set(nccl_environment.THREADS)
        assert value["measured"]
        assert set(value["measured"]) <= set(nccl_environment.THREADS)
