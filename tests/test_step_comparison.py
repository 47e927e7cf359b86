"""Steps that take turns: order, ratios, and the lines that the demo prints."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker_processes import Job, launched
from tf_libra.step_comparison import StepComparison, compare_steps, time_in_turns

LINE = re.compile(
    r"^ *(\d+\.\d\d) x (?:\((\d+\.\d\d) to (\d+\.\d\d)\))? +[\d.]+ (?:us|ms|s)  (.+)$"
)


def test_rounds_hold_every_step_once_in_an_order_of_their_own() -> None:
    called: list[Any] = []
    steps = [partial(called.append, name) for name in "abc"]
    seconds = time_in_turns(steps, 20, 2, barrier=lambda name: called.append(None))
    assert seconds.shape == (20, 3)
    assert (seconds > 0).all()
    assert called[::2] == [None] * 66
    rounds = ["".join(called[start : start + 6][1::2]) for start in range(0, 132, 6)]
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) > 1


def test_speedup_is_the_median_of_the_ratios_within_rounds() -> None:
    pace = np.array([1, 5, 2, 9, 4, 3, 7, 8, 6])  # of the machine, which the ratio cancels
    compared = StepComparison({"slow": tuple(3.0 * pace), "fast": tuple(1.5 * pace)})
    found = compared.speedup("fast", "slow")
    assert (found.low, found.median, found.high) == (2, 2, 2)
    assert compared.speedup("slow", "fast").high == 0.5


@pytest.mark.parametrize("count", [6, 11, 40])
def test_interval_holds_the_true_median_in_nineteen_of_twenty_cases(count: int) -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        ours, other = np.exp(random.normal(0, 0.1, (2, count)))
        found = StepComparison({"one": tuple(ours), "other": tuple(other)}).speedup("other", "one")
        assert found.low <= found.median <= found.high
        held += found.low <= 1 <= found.high
    assert held / 400 > 0.93


def test_one_process_compares_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_LIBRA_LAUNCHER", "none")  # others may have imported Horovod
    compared = compare_steps({"a": lambda: None, "b": lambda: None}, 6, 0)
    assert [len(seconds) for seconds in compared.seconds.values()] == [6, 6]
    lines = [LINE.match(line) for line in compared.describe("a").splitlines()]
    assert [line and line[4] for line in lines] == ["a", "b"]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("num_rounds", lambda: compare_steps({"a": lambda: None}, 5)),
        ("num_warm_up_rounds", lambda: compare_steps({"a": lambda: None}, 6, -1)),
        ("steps", lambda: compare_steps({})),
        ("baseline", lambda: StepComparison({"a": (1.0,) * 6}).describe("b")),
    ],
)
def test_bad_argument_is_named(field: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        call()


def test_demo_ends_with_the_speedup_over_one_worker(
    run_job: Callable[..., Job], tmp_path: Path
) -> None:
    example = Path(__file__).resolve().parents[1] / "examples" / "digits.py"
    output = run_job(
        str(example), 2, "--epochs=3", f"--logdir={tmp_path}", launcher=launched
    ).output(0)
    lines = output.partition("speedup over one worker")[2].splitlines()[1:]
    found = [LINE.match(line) for line in lines[:3]]
    assert all(found), output
    names = [line[4] for line in found if line]
    assert names[:2] == ["one worker", "one all-reduce after backward"]
    assert names[2].startswith("the active plan")
    active = found[2]
    assert active is not None
    assert float(active[2]) <= float(active[1]) <= float(active[3])
    assert ("One worker is faster" in output) == (float(active[3]) < 1)
