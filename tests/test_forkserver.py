"""The server that forks the tests' workers."""

import json
import os
import socket
from pathlib import Path

import pytest

from tests.forkserver import WITH_HOROVOD, Nursery
from tests.startup.sitecustomize import FORK_SERVER
from tests.worker_processes import state, wait_until, worker_environment

NEXT_PROCESS = Path("/proc/sys/kernel/ns_last_pid")


@pytest.mark.skipif(not os.access(NEXT_PROCESS, os.W_OK), reason="numbers processes as it likes")
def test_a_worker_ends_with_its_own_status_after_reuse_of_its_number(
    nursery: Nursery, tmp_path: Path
) -> None:
    environment, output = worker_environment(), tmp_path / "output"
    scripts = [tmp_path / "first.py", tmp_path / "second.py"]
    for status, script in enumerate(scripts, start=1):
        script.write_text(f"raise SystemExit({status})")
    for _ in range(500):  # others start processes, too, and one may keep the number
        first = nursery.fork(scripts[0], (), environment, output)
        assert first.wait(60) == 1
        NEXT_PROCESS.write_text(str(first.pid - 1))
        second = nursery.fork(scripts[1], (), environment, output)
        status = second.wait(60)
        if second.pid == first.pid:
            break
    assert (second.pid, status) == (first.pid, 2)


def test_workers_end_with_the_connection_of_their_client(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time\ntime.sleep(3600)")
    client = Nursery(Path(os.environ[FORK_SERVER]))
    worker = client.fork(script, (), worker_environment(), tmp_path / "output")
    assert worker.poll() is None
    client.close()
    wait_until(lambda: state(worker.pid) == "", 60)


def test_server_survives_clients_that_end_during_a_request(
    nursery: Nursery, tmp_path: Path
) -> None:
    script, output = tmp_path / "ends.py", tmp_path / "output"
    script.write_text("")
    request = {"command": [str(script)], "env": worker_environment(), "output": str(output)}
    request |= {"errors": str(output), "namespace": None}
    for sent in ("{", json.dumps(request) + "\n") * 5:
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.environ[FORK_SERVER] + WITH_HOROVOD)
        client.sendall(sent.encode())
        client.close()
    assert nursery.fork(script, (), worker_environment(), output).wait(60) == 0


def test_exit_functions_of_a_worker_run(nursery: Nursery, tmp_path: Path) -> None:
    """Although its interpreter does not end as another one."""
    script, output = tmp_path / "ends.py", tmp_path / "output"
    script.write_text(
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('end'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )
    assert nursery.fork(script, (), worker_environment(), output).wait(60) == 0
    assert output.read_text().split() == ["thread", "end"]
