import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import between, fractions, mixed, num_examples, pick
from tf_libra.simulation.event_simulator import Task, simulate_tasks

many = settings(max_examples=num_examples(300), deadline=None)
SECONDS = mixed([0.0], range(7), between(1e-6, 10)).tolist()


@st.composite
def graphs(draw, resources=3):
    """Up to 12 tasks, each after or concurrent with up to 3 earlier ones, on up to 2 resources."""
    used = [some for count in range(3) for some in itertools.combinations(range(resources), count)]
    how_many, *drawn = fractions(draw, 1 + 12 * 11)
    tasks = []
    for index, row in enumerate(np.reshape(drawn, (12, 11)).tolist()):
        work, using, priority, *earlier = row
        after, after_start = (
            {pick(range(index), fraction) for fraction in some[: pick(range(4), many)]}
            if index
            else ()
            for many, *some in (earlier[:4], earlier[4:])
        )
        tasks.append(
            Task(
                "work",
                pick(SECONDS, work),
                pick(used, using),
                after=tuple(after),
                after_start=tuple(after_start),
                priority=pick(range(3), priority),
            )
        )
    return tasks[: pick(range(1, 13), how_many)]


def check(tasks, spans):
    """Dependencies hold, no resource serves two, and none idles while a task wants only it."""
    for task, span in zip(tasks, spans, strict=True):
        waits = [spans[i].stop_seconds for i in task.after]
        waits += [spans[i].start_seconds for i in task.after_start]
        assert span.ready_seconds == max(waits, default=0.0)
        assert span.ready_seconds <= span.start_seconds <= span.stop_seconds
    for first, second in itertools.combinations(range(len(tasks)), 2):
        if set(tasks[first].resources) & set(tasks[second].resources):
            a, b = sorted(
                (first, second), key=lambda i: (spans[i].start_seconds, spans[i].stop_seconds)
            )
            assert spans[a].stop_seconds <= spans[b].start_seconds
    for index, task in enumerate(tasks):
        span = spans[index]
        if span.start_seconds > span.ready_seconds:
            # It began when one of its resources was given back.
            assert span.start_seconds in {
                spans[i].stop_seconds
                for i, other in enumerate(tasks)
                if i != index and set(other.resources) & set(task.resources)
            }


@many
@given(graphs())
def test_schedule_respects_dependencies_and_resources(tasks):
    spans = simulate_tasks(tasks)
    check(tasks, spans)
    for task, span in zip(tasks, spans, strict=True):
        assert span.stop_seconds == span.start_seconds + task.work


@many
@given(graphs(), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_constant_rate_stretches_time(tasks, rate):
    own = simulate_tasks(tasks)
    spans = simulate_tasks(tasks, lambda running: dict.fromkeys(running, rate))
    for alone, other in zip(own, spans, strict=True):
        for field in ("ready_seconds", "start_seconds", "stop_seconds"):
            assert getattr(other, field) * rate == pytest.approx(getattr(alone, field), abs=1e-6)


@many
@given(graphs(resources=1))
def test_the_least_priority_then_the_longest_wait_goes_first(tasks):
    tasks = [
        Task(t.kind, t.work + 1, (0,), t.after, priority=t.priority) for t in tasks
    ]  # all on one resource, none without work
    spans = simulate_tasks(tasks)
    keys = [
        (t.priority, s.ready_seconds, i) for i, (t, s) in enumerate(zip(tasks, spans, strict=True))
    ]
    for first, second in itertools.permutations(range(len(tasks)), 2):
        if spans[first].start_seconds < spans[second].start_seconds:
            was_ready = spans[second].ready_seconds <= spans[first].start_seconds
            assert not was_ready or keys[first] < keys[second]


def test_two_tasks_that_share_a_link():
    """Each gets half of the link while both run: 3 and 1 units end after 4 and 2 seconds."""
    tasks = [Task("send", 3.0), Task("send", 1.0)]
    spans = simulate_tasks(tasks, lambda running: dict.fromkeys(running, 1 / len(running)))
    assert [span.stop_seconds for span in spans] == [4.0, 2.0]


def test_task_waiting_for_two_resources_holds_neither():
    tasks = [
        Task("long", 5.0, ("a",)),
        Task("both", 1.0, ("b", "a")),
        Task("short", 1.0, ("b",), priority=1),
    ]
    spans = simulate_tasks(tasks)
    assert [span.start_seconds for span in spans] == [0.0, 5.0, 0.0]


def test_a_task_begins_with_or_after_another():
    tasks = [Task("first", 2.0, ("a",)), Task("second", 1.0, ("a",)), Task("third", 1.0)]
    tasks[2] = Task("third", 1.0, after_start=(1,))
    assert simulate_tasks(tasks)[2].start_seconds == 2.0


def test_no_tasks_have_no_spans():
    assert simulate_tasks([]) == ()


@pytest.mark.parametrize("work", [-1.0, math.nan, math.inf])
def test_work_must_be_finite_and_not_negative(work):
    with pytest.raises(ValueError, match=r"work.*'send'"):
        Task("send", work)


def test_cycles_and_unknown_tasks_are_rejected():
    with pytest.raises(ValueError, match=r"2 of 3 .* 0 \(a\)"):
        simulate_tasks([Task("a", 1, after=(1,)), Task("b", 1, after_start=(0,)), Task("c", 1)])
    with pytest.raises(ValueError, match=r"tasks\[0\].*0.*0,.*1"):
        simulate_tasks([Task("a", 1, after=(1,))])


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_rates_must_be_positive(rate):
    with pytest.raises(ValueError, match=r"rate.*0 \(send\)"):
        simulate_tasks([Task("send", 1.0)], lambda running: dict.fromkeys(running, rate))
