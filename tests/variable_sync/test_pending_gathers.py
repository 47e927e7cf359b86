"""Accesses to weights that are gathered between calls; jobs test the gathers themselves."""

import _thread
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from unittest import mock

import pytest
import tensorflow as tf

from tf_libra.backends import engine as engine_lib
from tf_libra.backends import sharded_steps
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.pending_gathers import pending_gathers
from tf_libra.variable_sync.variable_access import variable_access


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Longest waits for gathers, of accesses to a weight."""
    found: list[float] = []
    monkeypatch.setattr(engine_lib, "await_gathers", found.append)
    yield found
    pending_gathers().forget()
    variable_access().close()


def test_accesses_wait_in_the_next_elastic_job_too(waits: list[float]) -> None:
    weight = tf.Variable([1.0])
    for _ in range(2):
        pending_gathers().begin_step(frozenset({weight.handle._id}), 3.0)
        weight.numpy()
        assert waits
        STATE.reset()
        waits.clear()
        weight.numpy()
        assert not waits


def test_accesses_of_other_threads_wait_for_the_end_of_a_call(waits: list[float]) -> None:
    weight = tf.Variable([1.0])
    pending_gathers().begin_step(frozenset({weight.handle._id}), 3.0)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(weight.numpy()[0]))
    with pending_gathers().computing(), variable_access().unobserved():
        thread.start()
        weight.assign([2.0])
    thread.join()
    assert found == [2.0]


@pytest.mark.parametrize(("is_inside", "expected"), [(True, "fail_steps"), (False, "undo_steps")])
def test_access_inside_of_a_step_leaves_it_to_the_end_to_undo_it(
    waits: list[float], monkeypatch: pytest.MonkeyPatch, is_inside: bool, expected: str
) -> None:
    """`tf.py_function` runs in threads that Python has not started."""
    called: list[str] = []
    for name in ("undo_steps", "fail_steps"):
        monkeypatch.setattr(sharded_steps, name, partial(called.append, name))
    weight = tf.Variable([1.0])
    pending_gathers().begin_step(frozenset({weight.handle._id}), 3.0)
    monkeypatch.setattr(engine_lib, "await_gathers", mock.Mock(side_effect=EngineError("lost")))
    has_ended = threading.Event()

    def access() -> None:
        with contextlib.suppress(Exception):
            weight.numpy()
        has_ended.set()

    with pending_gathers().computing() if is_inside else contextlib.nullcontext():
        _thread.start_new_thread(access, ())
        assert has_ended.wait(60)
    assert called == [expected]


def test_wait_for_the_end_of_a_call_has_a_deadline(waits: list[float]) -> None:
    weight = tf.Variable([1.0])
    pending_gathers().begin_step(frozenset({weight.handle._id}), 0.0)
    with pending_gathers().computing(), pytest.raises(EngineError, match="has not ended"):
        weight.numpy()
