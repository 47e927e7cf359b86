"""Signals that end the launcher, and output that might stop it."""

import io
import multiprocessing
import os
import subprocess
import sys

import pytest

from tf_libra.launcher.__main__ import TolerantCodecs

# The second signal comes while the first one's handler sets the event, which holds its lock.
TWICE = """
import signal, sys, threading
from tf_libra.launcher.__main__ import shutdown_event

event = shutdown_event()
setting = threading.Condition.notify_all.__code__


def again(frame, what, argument):
    if frame.f_code is setting and what == "call":
        print("again")
        signal.raise_signal(signal.SIGINT)


sys.setprofile(again)
signal.raise_signal(signal.SIGTERM)
sys.setprofile(None)
print(event.is_set())
"""


# Horovod's thread for a signal is through with an event later than the worker that it ends is: it
# drops the event when the launcher ends, and is cut off before the event's semaphore is forgotten.
DROPPED_LATE = """
import multiprocessing, sys, threading, time
from multiprocessing import resource_tracker
from horovod.runner import launch
from horovod.runner.common.util import safe_shell_exec
from tf_libra.launcher.__main__ import main

begun, forget = threading.Event(), resource_tracker.unregister


def forget_late(*what):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        time.sleep(600)
    forget(*what)


def drop():
    safe_shell_exec._create_event(multiprocessing.get_context("spawn"))
    begun.set()


def run():
    threading.Thread(target=drop, daemon=True).start()
    assert begun.wait(60)


resource_tracker.unregister, launch.run_commandline = forget_late, run
sys.argv[1:] = ["-np", "2", "python"]
lasting = []
sys.exit(main(lasting))
"""


def test_nested_signal_does_not_deadlock() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["again", "True"]


def test_no_semaphore_is_complained_of_after_the_last_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROPPED_LATE], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_is_no_text_is_shown_with_replacements(
    monkeypatch: pytest.MonkeyPatch, horovod: None
) -> None:
    from horovod.runner.common.util import safe_shell_exec

    monkeypatch.setattr(safe_shell_exec, "codecs", TolerantCodecs)
    reader, writer = multiprocessing.Pipe(duplex=False)
    os.write(writer.fileno(), b"caf\xc3\xa9 \xff\xfe\n" + b"cut \xc3")
    writer.close()
    shown = io.StringIO()
    safe_shell_exec.prefix_connection(reader, shown, "stderr", 1, False)
    lines = shown.getvalue().splitlines()
    assert [line.partition(":")[2] for line in lines] == [
        "caf\N{LATIN SMALL LETTER E WITH ACUTE} " + 2 * "\N{REPLACEMENT CHARACTER}",
        "cut \N{REPLACEMENT CHARACTER}",
    ]
