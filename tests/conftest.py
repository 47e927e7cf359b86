"""Fixtures that every room's tests may use."""

import collections
import contextlib
import functools
import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import networkx as nx
import pytest

from benchmarks.cluster import Cluster, why_impossible
from tests import forkserver
from tests.forkserver import Nursery
from tests.startup import sitecustomize
from tests.startup.sitecustomize import FORK_SERVER
from tests.worker_processes import (
    DEADLINE_SECONDS,
    HOROVOD_IN_STEPS,
    TAIL,
    Job,
    Launcher,
    Workers,
    on_this_host,
    running_workers,
    worker_environment,
)
from tf_libra.specs.plan import Plan, TensorGroup

# Elements of each tensor of `models.HandWritten`, in backward order.
SHAPES = {"b2": 5, "w2": 9 * 5, "b1": 9, "w1": 16 * 9, "b0": 16, "w0": 12 * 16}


def pytest_configure(config: pytest.Config) -> None:
    """Undoes that a script's background ignores Ctrl-C, for the tests and all that they start.

    And no random test depends on how fast the machine draws its examples, or on the run. All Python
    programs that tests start begin with `tests/startup`.
    """
    startup = str(Path(sitecustomize.__file__).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if startup not in paths:  # processes of pytest-xdist inherit it
        os.environ["PYTHONPATH"] = os.pathsep.join([startup, *filter(None, paths)])
    hypothesis.settings.register_profile(
        "any machine",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("any machine")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if FORK_SERVER not in os.environ:  # processes of pytest-xdist inherit it
        stack = contextlib.ExitStack()
        config.add_cleanup(stack.close)
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "socket")
        stack.enter_context(forkserver.running(path, worker_environment()))
        os.environ[FORK_SERVER] = str(path)


# Fixtures that start worker processes, a browser or network namespaces; modules share the jobs.
_STARTS_WORKERS = frozenset(
    ("run_job", "start_workers", "get_nursery", "nursery", "make_cluster", "browser")
)
_SHARED = frozenset(
    (*("plans", "trouble", "traced", "horovod_engine", "browser", "make_cluster"), "cached_models")
)
# Clusters change the machine's network, and a browser then aborts its downloads.
_OF_THE_NETWORK = frozenset(("browser", "make_cluster"))

# Fixtures that build C++ programs; a folder allows only one make at a time.
_COMPILES = frozenset(("built_programs", "toy"))

# Parameters by each of which a module has a job of its own.
_JOB_OF = ("place", "engines", "trained")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a long text by its length: pytest-xdist sends the names of all tests."""
    return f"{len(val)} long" if isinstance(val, str | bytes) and len(val) > 100 else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells tests that start workers from the others, keeps together what shares a job, and orders.

    Where tests run in several processes, a module stays in one, and so do modules that look at the
    same job, or make network namespaces; but the jobs of one module may be in any. Groups that
    start workers take longest and come first, before all that of the network, in which much waits
    for deadlines: then no process waits long for the others at the end.
    """
    sharing = nx.Graph()
    starting = set()
    for item in items:
        part, used = _part(item), set(item.fixturenames)  # type: ignore[attr-defined]
        sharing.add_node(part)
        sharing.add_edges_from((part, f"fixture {name}") for name in used & _SHARED)
        if used & _OF_THE_NETWORK:
            sharing.add_edge(part, "the machine's network")
        if used & _STARTS_WORKERS:
            item.add_marker(pytest.mark.workers)
        if used & _COMPILES:
            item.add_marker(pytest.mark.compiles)
            sharing.add_edge(part, "what make builds")
        if item.get_closest_marker("workers"):
            starting.add(part)
    group, late = {}, {}
    for together in nx.connected_components(sharing):
        name = min(together)
        group |= dict.fromkeys(together, name)
        late[name] = not together & starting
    size = collections.Counter(group[_part(item)] for item in items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group[_part(item)]))

    of_the_network = group.get("the machine's network")

    def turn(item: pytest.Item) -> tuple[bool, bool, int, str]:
        name = group[_part(item)]
        return late[name], name != of_the_network, -size[name], name

    items.sort(key=turn)


def _part(item: pytest.Item) -> str:
    """Returns the name of a module's tests that stay together: all, or those that share a job."""
    module = item.nodeid.partition("::")[0]
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return " ".join(
        [module, *(str(parameters[parameter]) for parameter in _JOB_OF if parameter in parameters)]
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests, now there, are looked at by no collection of garbage any more.

    Where the groups are not heeded every job would run in both processes: better not at all.
    """
    gc.freeze()
    grouped = getattr(session.config.option, "loadgroup", False)
    alone = [item.nodeid for item in session.items if "@" not in item.nodeid]
    if grouped and alone:
        raise pytest.UsageError(
            f"pytest-xdist does not keep groups of tests together, such as that of {alone[0]}: this"
            f" version of it does not go with pytest {pytest.__version__}"
        )


@pytest.fixture
def horovod() -> Iterator[None]:
    """Horovod initialized, for this test alone: the next one finds it as a process does."""
    import horovod.tensorflow as hvd

    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(scope="session")
def run_job(
    tmp_path_factory: pytest.TempPathFactory, get_nursery: Callable[..., Nursery]
) -> Callable[..., Job]:
    """A function that runs a script to its end: `run_job(script, world_size, *args, env=)`.

    The script is one of `jobs`, or the whole path of any other.

    Every worker must end with 0, unless `check` is false. Workers are forked; only where the
    environment says how TensorFlow is imported they are started from scratch.
    """

    def run(
        script: str,
        world_size: int,
        *args: str,
        env: dict[str, str] | None = None,
        check: bool = True,
        deadline_seconds: float = DEADLINE_SECONDS,
        launcher: Launcher = on_this_host,
    ) -> Job:
        folder = tmp_path_factory.mktemp(Path(script).stem)
        imports_otherwise = any(
            name.startswith("TF_") and not name.startswith("TF_LIBRA_") for name in env or {}
        )
        # Jobs that meet otherwise than through Horovod do not import it.
        with running_workers(
            script,
            world_size,
            folder,
            *args,
            env=env,
            nursery=None if imports_otherwise else get_nursery(launcher is on_this_host),
            launcher=launcher,
        ) as workers:
            workers.wait(deadline_seconds)
            job = workers.job()
        if check and any(job.returncodes):
            pytest.fail(
                f"{script}: workers ended with {job.returncodes}\n"
                + "\n".join(f"--- rank {r}\n{job.output(r)[-TAIL:]}" for r in range(world_size))
            )
        return job

    return run


@pytest.fixture(scope="session")
def start_workers() -> Callable[..., contextlib.AbstractContextManager[Workers]]:
    """`running_workers`, for tests that interfere while a job runs."""
    return running_workers


@pytest.fixture(scope="session")
def get_nursery() -> Iterator[Callable[[bool], Nursery]]:
    """A function that returns the server that forks workers with or without Horovod imported.

    Workers of a server need not import TensorFlow first. All processes of pytest-xdist share it.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(imports_horovod: bool) -> Nursery:
            path = Path(os.environ[FORK_SERVER])
            running = Nursery(path, imports_horovod=imports_horovod)
            stack.callback(running.close)
            return running

        yield get


@pytest.fixture(scope="session")
def nursery(get_nursery: Callable[[bool], Nursery]) -> Nursery:
    """The server of workers that have imported Horovod."""
    return get_nursery(True)


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    """`Cluster`, where this machine and user can make one."""
    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
    return Cluster


@pytest.fixture(scope="session")
def three_groups() -> Plan:
    """Three groups with threads (1, 2, 1) for two workers and `models.HandWritten` in float32."""
    return Plan(
        groups=(TensorGroup(0, 2, 1), TensorGroup(2, 4, 2), TensorGroup(4, 6, 1)),
        tensor_names=tuple(SHAPES),
        num_bytes=tuple(4 * elements for elements in SHAPES.values()),
        num_workers=2,
        strategy="by hand",
        dtypes=("float32",) * len(SHAPES),
    )


@pytest.fixture(scope="session")
def plan_file(three_groups: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(three_groups.to_json())
    return path


@pytest.fixture(scope="session")
def traced(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/traced.py`."""
    return run_job("traced.py", 2, str(plan_file))


@pytest.fixture(scope="session")
def plans(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/plans.py`."""
    return run_job("plans.py", 2, str(plan_file))


@pytest.fixture(scope="session")
def trouble(run_job: Callable[..., Job], plan_file: Path) -> Job:
    """The job of `jobs/failure_cases.py`."""
    return run_job("failure_cases.py", 2, str(plan_file))


@pytest.fixture(scope="session")
def horovod_engine(run_job: Callable[..., Job]) -> Job:
    """The job of `jobs/horovod_engine.py`."""
    return run_job("horovod_engine.py", 2, env=HOROVOD_IN_STEPS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser's `Tab`; without one, tests are left out, but never where CI runs them."""
    # The GPU benchmark's environment has no Selenium.
    from tools import tensorboard_tab

    if tensorboard_tab.programs() is None:
        message = "no browser: tools/install_browser.sh installs Debian's"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with tensorboard_tab.browsing() as tab:
        yield tab
