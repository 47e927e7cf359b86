"""A background job as a process: started, paused, resumed and ended."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

# From a request to end to the end by force.
_GRACE_SECONDS = 5.0


class BackgroundProcess:
    """A command under the kernel's idle scheduling, with all processes that it starts.

    Its memory, files and connections stay as they are while it is paused.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Starts it; it ends with this process, however that ends.

        Args:
            command: program and arguments.
            env: its environment; None for that of this process.

        Raises:
            ValueError: there is no command.
        """
        if not command:
            raise ValueError("command must name a program, got none")
        self.command = tuple(command)
        told, tells = os.pipe()
        launcher = [sys.executable, "-m", "tf_libra.multiplexing.idle", str(os.getpid())]
        with os.fdopen(told) as reader:
            with os.fdopen(tells, "w"):
                # A group of its own: Ctrl-C reaches it only through us. The command has another:
                # what watches over it is not paused with it. But our session: where the kernel
                # groups tasks by sessions (sched_autogroup_enabled), another one would have as
                # much of a core as ours, idle scheduling or not.
                self._process = subprocess.Popen(
                    [*launcher, str(tells), *command],
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                    env=env,
                    pass_fds=(tells,),
                )
            number = reader.readline()
        # Nothing where it has ended before there was a command.
        self._group = int(number) if number else None
        self._is_paused = False
        self._num_pauses = 0

    @property
    def status(self) -> int | None:
        """How it has ended: its exit status, or the negative of a signal; None while it runs."""
        return self._process.poll()

    @property
    def is_paused(self) -> bool:
        """Whether it waits to be resumed."""
        return self._is_paused

    @property
    def num_pauses(self) -> int:
        """How often it was paused."""
        return self._num_pauses

    def pause(self) -> None:
        """Stops it where it is; nothing is lost."""
        if not self._is_paused:
            self._is_paused = True
            self._num_pauses += 1
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        if self._is_paused:
            self._is_paused = False
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Asks it to end, and sees to it within some seconds."""
        if self.status is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # what is stopped hears nothing
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        # Also what it has started, and left.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)
