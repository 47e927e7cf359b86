"""Process of a background job: start, pause, resume, end."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Seconds between SIGTERM and SIGKILL.
_GRACE_SECONDS = 5.0


class BackgroundProcess:
    """Command under the kernel's idle scheduling, with all processes that it starts.

    A paused command keeps its memory, files and connections.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start the command, which ends with this process in any case.

        Args:
            command: program and arguments.
            env: environment of the command; None: that of this process.

        Raises:
            ValueError: the command is empty.
        """
        if not command:
            raise ValueError("command must name a program, got none")
        self.command = tuple(command)
        read_end, write_end = os.pipe()
        launcher = [
            sys.executable,
            "-m",
            "tf_libra.background_jobs.sched_idle_exec",
            str(os.getpid()),
        ]
        with os.fdopen(read_end) as reader:
            with os.fdopen(write_end, "w"):
                # Its own process group, so that Ctrl-C reaches it only through this process. The
                # command has another group, so that a pause does not stop its supervisor. The
                # session is shared: with sched_autogroup_enabled, another session would get as much
                # of a core as this one, even under idle scheduling.
                self._process = subprocess.Popen(
                    [*launcher, str(write_end), *command],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                    env=env,
                    pass_fds=(write_end,),
                )
            number = reader.readline()
        # Empty if the runner ended before the command started.
        self._group = int(number) if number else None
        self._is_paused = False
        self._num_pauses = 0

    @property
    def status(self) -> int | None:
        """Exit status, or the negative signal number; None while the command runs."""
        return self._process.poll()

    @property
    def is_paused(self) -> bool:
        """True if the command is paused."""
        return self._is_paused

    @property
    def num_pauses(self) -> int:
        """Number of pauses."""
        return self._num_pauses

    def pause(self) -> None:
        """Pause the command; it keeps its state."""
        if not self._is_paused:
            self._is_paused = True
            self._num_pauses += 1
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the command."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End the command by SIGTERM, and by SIGKILL after some seconds."""
        if self.status is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process handles no signal
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        # Includes processes that the command has started and not ended.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)
