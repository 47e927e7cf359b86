"""A process that has imported TensorFlow, tf_libra and perhaps Horovod, and forks workers.

Importing them takes far longer than anything that most jobs do. Nothing of TensorFlow or Horovod is
started before a worker is forked, so a worker is a process like any other; it is alone in its
session, and may live in a network namespace.

    python tests/forkserver.py [--without-horovod]

reads one request per line from its standard input and answers each with one line (`_serve`).
"""

import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_SLAVE_OF_ALL = 0x1000, 0x80000 | 0x4000
_PR_SET_PDEATHSIG = 1
_WITHOUT_HOROVOD = "--without-horovod"


@dataclass
class Child:
    """A forked worker; what the tests use of `subprocess.Popen`."""

    nursery: "Nursery"
    pid: int
    returncode: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode


class Nursery:
    """The process, seen from the tests."""

    def __init__(self, env: dict[str, str], *, imports_horovod: bool = True) -> None:
        self._lock = threading.Lock()
        flags = [] if imports_horovod else [_WITHOUT_HOROVOD]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *flags],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(
        self,
        script: Path,
        args: tuple[str, ...],
        env: dict[str, str],
        output: Path,
        namespace: str | None = None,
        errors: Path | None = None,
    ) -> Child:
        """Runs a script in a process of its own; `env` is all of its environment.

        What it prints goes to `output`, its standard error to `errors` where that is given.
        """
        request = {
            "command": [str(script), *args],
            "env": env,
            "output": str(output),
            "namespace": namespace,
            "errors": str(errors or output),
        }
        return Child(self, int(self.ask(request)))

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the nursery ended with {self._process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        """Ends it; workers that still run end with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    """{"command": ...} is answered by a process id, {"poll": id} by its return code or null."""
    gc.disable()
    if _WITHOUT_HOROVOD not in sys.argv:
        import horovod.tensorflow  # noqa: F401
    import process_stacks  # noqa: F401
    import tensorflow as tf

    import tf_libra.keras
    import tf_libra.runtime.training_step  # noqa: F401
    from tf_libra.internal import native
    from tf_libra.internal.systems import load_systems

    # Keras and others are imported at first use, and the op library is read.
    tf.keras.Sequential, tf.keras.optimizers.SGD  # noqa: B018
    native.load()
    load_systems()
    # Else every collection of garbage in every worker would look at all modules again, which takes
    # a good part of what a small job computes; so does looking every 700 objects while functions
    # are traced, of which there are millions.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    outcomes: dict[int, int] = {}
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            answer = _outcome(request["poll"], outcomes)
        else:
            answer = os.fork()
            if answer == 0:
                answers.close()
                _become_worker(**request)
                return
            outcomes.pop(answer, None)  # of another one, that had this number before
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _outcome(pid: int, outcomes: dict[int, int]) -> int | None:
    """Returns the exit code; any number of threads may call this, but a process ends once."""
    if pid not in outcomes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            outcomes[pid] = os.waitstatus_to_exitcode(status)
    return outcomes.get(pid)


def _become_worker(
    command: list[str], env: dict[str, str], output: str, namespace: str | None, errors: str
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    if namespace is not None:
        _enter(libc, namespace)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for path, target in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
    sys.modules["process_stacks"].register()
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def _enter(libc: Any, namespace: str) -> None:
    """As `ip netns exec` does, with the host names of that namespace."""
    with open(f"/run/netns/{namespace}") as file:
        _check(libc.setns(file.fileno(), _CLONE_NEWNET))
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, _MS_SLAVE_OF_ALL, None))
    names = f"/etc/netns/{namespace}/hosts".encode()
    _check(libc.mount(names, b"/etc/hosts", None, _MS_BIND, None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    _serve()
