"""Signals that end the launcher."""

import subprocess
import sys

# The second signal comes while the first one's handler sets the event, which holds its lock.
TWICE = """
import signal, sys, threading
from tf_libra.launch.__main__ import shutdown_event

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


def test_a_signal_while_another_is_handled_stops_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["again", "True"]
