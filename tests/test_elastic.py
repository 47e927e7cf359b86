"""Horovod's elastic mode, under lanes and without: workers die, others join, and only uncommitted
steps are lost.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forkserver import Child, Nursery
from tests.worker_processes import JOBS, wait_until, worker_environment
from tf_libra.specs.plan import Plan

DEADLINE_SECONDS = 240.0
# All of them this machine.
FIRST, LOST, JOINING = "localhost", "127.0.0.1", "127.0.0.2"


class ElasticJob:
    """Workers under Horovod's own driver, forked here."""

    def __init__(self, nursery: Nursery, folder: Path, script: str, *arguments: str) -> None:
        from horovod.runner.elastic.discovery import FixedHosts
        from horovod.runner.elastic.driver import ElasticDriver
        from horovod.runner.elastic.rendezvous import create_rendezvous_handler
        from horovod.runner.http.http_server import RendezvousServer

        self.folder = folder
        self.workers: list[tuple[str, Child]] = []
        self._nursery = nursery
        self._script, self._arguments = JOBS / script, arguments
        self._lock = threading.Lock()
        server = RendezvousServer()
        self.hosts = FixedHosts({FIRST: 2, LOST: 2})
        self.driver = ElasticDriver(server, self.hosts, min_num_proc=2, max_num_proc=4)
        self._port = server.start(create_rendezvous_handler(self.driver))
        self.driver.wait_for_available_slots(4)
        self.driver.start(4, self._run_worker)

    def _run_worker(self, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Called by the driver in a thread per worker."""
        from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

        place = create_run_env_vars("127.0.0.1", ["lo"], self._port, elastic=True)
        environment = worker_environment() | create_slot_env_vars(slot)
        environment |= {name: str(value) for name, value in place.items()}
        environment |= {"TF_LIBRA_JOB_FOLDER": str(self.folder), "TF_LIBRA_INTERFACE": "lo"}
        with self._lock:
            output = self.folder / f"output.{len(self.workers)}.txt"
            child = self._nursery.fork(self._script, self._arguments, environment, output)
            self.workers.append((slot.hostname, child))
        while child.poll() is None:
            if any(event.is_set() for event in events):
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.05)
        assert child.returncode is not None
        return child.returncode, time.time()

    def steps(self, pid: int) -> list[dict[str, Any]]:
        path = self.folder / f"steps.{pid}.txt"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _check(self) -> None:
        """Checks that only the killed workers have failed."""
        for host, child in self.workers:
            assert host == LOST or not child.poll(), child.poll()

    def lose_two(self) -> None:
        """Kills both workers of a host once all have come to the step that they are held at."""

        def reached(step: int) -> bool:
            self._check()
            logs = [self.steps(child.pid) for _, child in self.workers]
            return len(logs) == 4 and all(log and log[-1].get("step") == step for log in logs)

        wait_until(lambda: reached(10), DEADLINE_SECONDS)
        for host, child in self.workers:
            if host == LOST:
                os.kill(child.pid, signal.SIGKILL)
        (self.folder / "go-on").touch()

    def get_others(self) -> None:
        """Offers another host, once the workers that are left have taken a step by themselves."""

        def shrunk() -> bool:
            self._check()
            return any(line.get("size") == 2 for _, c in self.workers for line in self.steps(c.pid))

        wait_until(shrunk, DEADLINE_SECONDS)
        self.hosts.set({FIRST: 2, JOINING: 2})

    def wait_for_its_end(self) -> None:
        def ended() -> bool:
            self._check()
            return all(child.poll() == 0 for host, child in self.workers if host == FIRST)

        wait_until(ended, DEADLINE_SECONDS)
        for host, child in self.workers:
            if host != LOST:
                assert child.wait(DEADLINE_SECONDS) == 0

    def outputs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("output.*"))


@contextmanager
def elastic_job(
    nursery: Nursery, folder: Path, script: str, *arguments: str
) -> Iterator[ElasticJob]:
    job = ElasticJob(nursery, folder, script, *arguments)
    try:
        yield job
    except Exception:
        print(job.outputs()[-20_000:])
        raise
    finally:
        job.driver.stop()
        for _, child in job.workers:
            if child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()


@pytest.fixture(scope="module", params=["lanes", "horovod"])
def story(
    request: pytest.FixtureRequest,
    nursery: Nursery,
    three_groups: Plan,
    tmp_path_factory: pytest.TempPathFactory,
) -> ElasticJob:
    """Four workers, of which two are killed after step 10; two others join; the end."""
    folder = tmp_path_factory.mktemp("elastic")
    plan_file = folder / "plan.json"
    wide = replace(
        three_groups,
        num_workers=4,
        num_bytes=tuple(2 * size for size in three_groups.num_bytes),
        dtypes=("float64",) * len(three_groups.tensor_names),
    )
    plan_file.write_text(wide.to_json())
    # In one of the jobs, batches come by `tf_libra.join`, and ranks update their parts of weights.
    more = ["joined", "sharded"] if request.param == "lanes" else []
    with elastic_job(nursery, folder, "elastic.py", str(plan_file), request.param, *more) as job:
        job.lose_two()
        job.get_others()
        job.wait_for_its_end()
    return job


def test_world_shrinks_and_grows(story: ElasticJob) -> None:
    for host, child in story.workers:
        sizes = [line["size"] for line in story.steps(child.pid) if "size" in line]
        changes = [size for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1]]
        assert changes == {FIRST: [4, 2, 4], LOST: [4], JOINING: [4]}[host]


def test_only_uncommitted_steps_are_lost(story: ElasticJob) -> None:
    for host, child in story.workers:
        numbers = [line["step"] for line in story.steps(child.pid) if "step" in line]
        if host == FIRST:
            # Nine steps were committed when the others were lost in the eleventh.
            assert numbers == [*range(1, 11), *range(10, numbers[-1] + 1)]
        else:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_error_is_what_elastic_mode_recovers_from(story: ElasticJob) -> None:
    for host, child in story.workers:
        errors = [line["error"] for line in story.steps(child.pid) if "error" in line]
        assert len(errors) == (1 if host == FIRST else 0)
        for error in errors:
            assert error.startswith("HorovodInternalError: ")
            assert "step 11 was not completed" in error


def test_plan_is_remade_for_fewer_ranks_and_the_provided_one_used_again(story: ElasticJob) -> None:
    for host, child in story.workers:
        if host != FIRST:
            continue
        lines = [line for line in story.steps(child.pid) if "phase" in line]
        assert all(line["phase"] == "run" for line in lines if line["size"] == 4)
        assert "measure" in {line["phase"] for line in lines if line["size"] == 2}
    with np.load(story.folder / "end.npz") as end:
        assert Plan.from_json(str(end["plan"])).strategy == "by hand"
    assert story.outputs().count("made for 4 workers, but the job has 2 now") == 2


def test_weights_are_those_of_one_process(story: ElasticJob, nursery: Nursery) -> None:
    output = story.folder / "alone.txt"
    with np.load(story.folder / "end.npz") as end:
        ours = dict(end)
    environment = worker_environment() | {"TF_LIBRA_JOB_FOLDER": str(story.folder)}
    args = (str(ours.pop("step")), str(story.folder / "alone.npz"))
    child = nursery.fork(JOBS / "elastic_alone.py", args, environment, output)
    assert child.wait(DEADLINE_SECONDS) == 0, output.read_text()
    ours.pop("plan")
    with np.load(story.folder / "alone.npz") as alone:
        for name, value in ours.items():
            np.testing.assert_allclose(value, alone[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module", params=["ours", "released", "horovod"])
def staged(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ElasticJob]:
    """As above, in two stages; who is left commits nothing. To Horovod's state no others come."""
    folder = tmp_path_factory.mktemp("staged")
    with elastic_job(nursery, folder, "elastic_stages.py", request.param) as job:
        job.lose_two()
        if request.param != "horovod":
            job.get_others()
        job.wait_for_its_end()
    return request.param, job


def test_stages_go_on_from_what_all_of_them_had(
    staged: tuple[str, ElasticJob], nursery: Nursery
) -> None:
    """Lost stages, too: weights and momenta are those of one process, on every rank."""
    kind, story = staged
    sizes = [4, 2] if kind == "horovod" else [4, 2, 4]
    ends = []
    for host, child in story.workers:
        lines = [line for line in story.steps(child.pid) if "size" in line]
        found = [line["size"] for line in lines]
        changes = [size for i, size in enumerate(found) if i == 0 or size != found[i - 1]]
        assert changes == {FIRST: sizes, LOST: [4], JOINING: [4]}[host]
        assert all(len(line["stages"]) == 2 for line in lines)
        numbers = [line["step"] for line in lines]
        if host == FIRST:  # nine steps were committed when the others were lost in the eleventh
            assert numbers == [*range(1, 11), *range(10, numbers[-1] + 1)]
        if host != LOST:
            with np.load(story.folder / f"end.{child.pid}.npz") as end:
                ends.append(dict(end))
    assert len(ends) == sizes[-1]
    arguments = (str(ends[0]["step"]), str(story.folder / "alone.npz"))
    output = story.folder / "alone.txt"
    environment = worker_environment() | {"TF_LIBRA_JOB_FOLDER": str(story.folder)}
    child = nursery.fork(JOBS / "layer_stack.py", arguments, environment, output)
    assert child.wait(DEADLINE_SECONDS) == 0, output.read_text()
    with np.load(story.folder / "alone.npz") as alone:
        for end in ends:
            assert end.keys() == dict(alone).keys()
            for name, value in end.items():
                np.testing.assert_allclose(value, alone[name], rtol=1e-9, atol=1e-12, err_msg=name)
