"""Processes that have imported TensorFlow, tf_libra and perhaps Horovod, and fork workers.

Importing them takes far longer than anything that most jobs do. Nothing of TensorFlow or Horovod is
started before a worker is forked, so a worker is a process like any other; it is alone in its
session, and may live in a network namespace.

    python tests/forkserver.py SOCKET

serves the tests of all of pytest-xdist's processes, until its standard input ends. It imports
TensorFlow at the first connection, and forks a second server, which imports Horovod, too, at the
first to SOCKET.horovod. A client sends one request per line and gets one line for each
(`_Server`). The workers of a client end with its connection.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_SLAVE_OF_ALL = 0x1000, 0x80000 | 0x4000
_PR_SET_PDEATHSIG = 1
WITH_HOROVOD = ".horovod"


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
            time.sleep(0.1)
        assert self.returncode is not None
        return self.returncode


@contextlib.contextmanager
def running(path: Path, env: dict[str, str]) -> Iterator[None]:
    """Runs the servers, which wait for clients at `path`."""
    command = [sys.executable, str(Path(__file__).resolve()), str(path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as done:
        assert done.stdin is not None and done.stdout is not None
        done.stdout.readline()  # it listens
        yield
        done.stdin.close()


class Nursery:
    """A server, seen from the tests."""

    def __init__(self, path: Path, *, imports_horovod: bool = True) -> None:
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"{path}{WITH_HOROVOD if imports_horovod else ''}")
        self._lines = self._socket.makefile("rwb")

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
        with self._lock:
            self._lines.write(json.dumps(request).encode() + b"\n")
            self._lines.flush()
            answer = self._lines.readline()
        assert answer, "the server of workers has ended"
        return json.loads(answer)

    def close(self) -> None:
        """Ends the connection; workers that still run end with it."""
        self._lines.close()
        self._socket.close()


class _Server:
    """Server of one socket: the first without Horovod, or the second."""

    def __init__(self, path: Path) -> None:
        self._listener = _listen(str(path))
        self._horovod: socket.socket | None = _listen(f"{path}{WITH_HOROVOD}")
        self._has_imported = False
        self._clients: dict[socket.socket, Any] = {}
        self._workers: dict[socket.socket, set[int]] = {}
        self._outcomes: dict[int, int] = {}

    def serve(self) -> None:
        """Answers requests until standard input ends."""
        while True:
            listeners = [self._listener, *([self._horovod] if self._horovod else [])]
            ready = select.select([sys.stdin, *listeners, *self._clients], [], [])[0]
            if sys.stdin in ready:
                return
            if self._horovod in ready:
                self._import_once()
                self._start_second()
            if self._listener in ready:
                self._import_once()
                client, _ = self._listener.accept()
                self._clients[client] = client.makefile("rwb")
                self._workers[client] = set()
            for client in self._clients.keys() & set(ready):
                line = b""
                with contextlib.suppress(ConnectionError):
                    line = self._clients[client].readline()
                if line.endswith(b"\n"):
                    self._answer(client, json.loads(line))
                else:
                    self._end_workers(client)

    def _import_once(self) -> None:
        if not self._has_imported:
            _import_all()
            self._has_imported = True

    def _start_second(self) -> None:
        """Forks the server of workers with Horovod; afterwards each has one of the two sockets."""
        assert self._horovod is not None
        if os.fork() == 0:
            _end_with_parent()
            self._forget_clients()
            self._listener.close()
            self._listener = self._horovod
            import horovod.tensorflow  # noqa: F401

            gc.freeze()
        else:
            self._horovod.close()
        self._horovod = None

    def _answer(self, client: socket.socket, request: dict[str, Any]) -> None:
        """Answers a request.

        {"command": ...} is answered by a process id, {"poll": id} by its return code or null.
        """
        if "poll" in request:
            answer = self._outcome(request["poll"])
        else:
            answer = os.fork()
            if answer == 0:
                self._forget_clients()
                self._listener.close()
                if self._horovod is not None:
                    self._horovod.close()
                _become_worker(**request)
            self._outcomes.pop(answer, None)  # of another one, that had this number before
            self._workers[client].add(answer)
        with contextlib.suppress(ConnectionError):  # it has gone, which the next read says
            self._clients[client].write(json.dumps(answer).encode() + b"\n")
            self._clients[client].flush()

    def _outcome(self, pid: int) -> int | None:
        """Returns the exit code, if the process has ended, which it does once."""
        if pid not in self._outcomes:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                self._outcomes[pid] = os.waitstatus_to_exitcode(status)
                for pids in self._workers.values():
                    pids.discard(pid)
        return self._outcomes.get(pid)

    def _end_workers(self, client: socket.socket) -> None:
        """Ends what a client that has gone has left."""
        for pid in self._workers.pop(client):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._close(client)

    def _forget_clients(self) -> None:
        for client in list(self._clients):
            self._close(client)
        self._workers.clear()

    def _close(self, client: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # of an answer that was not sent
            self._clients.pop(client).close()
        client.close()


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _import_all() -> None:
    gc.disable()
    import process_stacks  # noqa: F401
    import tensorflow as tf

    import tf_libra.keras
    import tf_libra.runtime.training_step  # noqa: F401
    from tf_libra.internal import native
    from tf_libra.internal.registry import load_systems

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


def _become_worker(
    command: list[str], env: dict[str, str], output: str, namespace: str | None, errors: str
) -> NoReturn:
    libc = _end_with_parent()
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
    status = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    _end(status)


def _end(status: int) -> NoReturn:
    """Ends this process as the interpreter does, but does not take apart what was imported.

    That would copy the memory that workers share, and takes longer than many a case. Threads are
    waited for, exit functions run, and then C++ ends: its destructors may look at threads.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(status)
    raise AssertionError("exit has returned")


def _end_with_parent() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return libc


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


def main() -> None:
    server = _Server(Path(sys.argv[1]))
    print(flush=True)
    server.serve()


if __name__ == "__main__":
    main()
