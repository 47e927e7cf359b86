"""What a training function tells of itself."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tf_libra.backends import nccl
from tf_libra.cost_model import ContentionModel, OverlapSample, fit
from tf_libra.model.plan import Plan, TensorGroup
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning import make_plan
from tf_libra.profiling.samples import MeasuredGroup, MeasuredTimeline
from tf_libra.simulation import simulate
from tf_libra.story.summary import describe, plan_table
from tf_libra.tuning import Phase, Tuned

PROFILE = BackwardProfile.from_arrays(
    [4_000_000, 1_500, 250_000_000], [1e-3, 2e-3, 3e-3], ["a", "b", "c"]
)
MODEL = ContentionModel(
    num_workers=2,
    hop_latency=1e-4,
    compute=(1.05, 0.05),
    overlapped=(1.0e9, 5e8, 0.5),
    exclusive=(1.5e9, 5e8, 0.5),
)
PLAN = Plan.for_profile(
    PROFILE, (TensorGroup(0, 2, 4), TensorGroup(2, 3, 16)), 2, "by hand", predicted_seconds=0.3
)


def rows(table: str) -> list[list[str]]:
    return [line.split("  ") for line in table.splitlines()]


def test_table_has_a_row_per_group_and_lines_up() -> None:
    table = plan_table(PLAN, PROFILE, MODEL)
    lines = table.splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["group", "tensors", "MB", "threads", "start", "ms", "end", "ms"]
    spans = simulate(PROFILE, PLAN, MODEL).groups
    for line, group, megabytes, span in zip(
        lines[1:], ("2 (0..1)", "1 (2..2)"), ("4.002", "250.000"), spans, strict=True
    ):
        assert group in line
        assert megabytes in line
        assert f"{span.start_seconds * 1e3:.1f}" in line
        assert line.endswith(f"{span.end_seconds * 1e3:.1f}")


def test_table_without_a_model_predicts_nothing() -> None:
    for table in (plan_table(PLAN, PROFILE, None), plan_table(PLAN, None, MODEL)):
        assert [line.split()[-2:] for line in table.splitlines()[1:]] == [["-", "-"]] * 2


def journal(**known: Any) -> Any:
    """What `describe` looks at, of a journal that knows this much."""
    nothing = {
        "phase": Phase.TRACE,
        "options": SimpleNamespace(engine="lanes"),
        "tuned": None,
        "plan": None,
        "profile": None,
        "cost_model": None,
        "timelines": [],
        "remarks": [],
        "median_step_seconds": lambda phase: None,
    }
    return SimpleNamespace(**(nothing | known))


def test_before_the_first_step_only_the_phase_is_known() -> None:
    assert describe(journal()) == "phase: trace"


def test_remarks_are_kept() -> None:
    told = describe(journal(remarks=["Horovod reduces all of them", "and so on"]))
    assert told.splitlines()[1:] == ["note: Horovod reduces all of them", "note: and so on"]


def samples() -> tuple[OverlapSample, ...]:
    """Exclusive all-reduces of several sizes, as the model has them."""
    return tuple(
        OverlapSample(
            num_bytes=num_bytes,
            num_threads=r,
            compute_seconds=0.0,
            overlap_seconds=0.0,
            residual_seconds=MODEL.startup_seconds + num_bytes / float(MODEL.exclusive_rate(r)),
        )
        for r in (1, 2, 4)
        for num_bytes in (10_000, 1_000_000, 20_000_000)
    )


def groups(start_seconds: float) -> tuple[MeasuredGroup, ...]:
    """The first group in two parts, as where its tensors are of two dtypes."""
    return (
        MeasuredGroup(0, 1, 8, 0.0, start_seconds, start_seconds + 0.01),
        MeasuredGroup(0, 1, 8, 0.0, start_seconds + 0.02, start_seconds + 0.05),
    )


def test_measured_times_stand_beside_predicted_ones() -> None:
    timelines = [MeasuredTimeline(groups(start), 0.1, 0.2) for start in (0.1, 0.3, 0.2)]
    header, first, second = plan_table(PLAN, PROFILE, MODEL, timelines).splitlines()
    assert header.endswith("measured start    end")
    assert first.split()[-2:] == ["200.0", "250.0"]
    assert second.split()[-2:] == ["-", "-"]


def test_whole_story_fits_into_100_columns() -> None:
    plan = replace(make_plan(PROFILE, MODEL, "libra"), notes=("a note to the reader",))
    seen = samples()
    fitted = fit(seen, 2)
    told = describe(
        journal(
            phase=Phase.RUN,
            tuned=Tuned(plan, None, fitted.model, fitted, 0.034, seen, plan.notes),
            plan=plan,
            profile=PROFILE,
            cost_model=fitted.model,
            timelines=[
                SimpleNamespace(backward_seconds=0.2, groups=groups(0.1)),
                SimpleNamespace(backward_seconds=0.4, groups=groups(0.3)),
            ],
            median_step_seconds={Phase.MEASURE: 0.5, Phase.RUN: 0.4}.get,
        )
    )
    assert max(len(line) for line in told.splitlines()) <= 100
    assert told.startswith("phase: run\n")
    assert "9 samples" in told
    assert "3.4%" in told
    assert "a note to the reader" in told
    assert plan.predicted_seconds is not None
    assert f"backward: predicted {plan.predicted_seconds * 1e3:.1f} ms, measured 300.0 ms" in told
    assert "step before: 500.0 ms" in told
    assert "step after: 400.0 ms (-20.0%)" in told
    for r in (1, 2, 4):
        assert f"    r={r}  " in told


def test_plan_that_predicts_nothing_is_measured_all_the_same() -> None:
    told = describe(
        journal(
            phase=Phase.RUN,
            plan=replace(PLAN, predicted_seconds=None),
            timelines=[SimpleNamespace(backward_seconds=0.25, groups=())],
        )
    )
    assert "backward: measured 250.0 ms" in told
    assert "predicted" not in told


def test_long_notes_are_wrapped() -> None:
    note = " ".join(["word"] * 60)
    told = describe(journal(plan=replace(PLAN, notes=(note,))))
    assert max(len(line) for line in told.splitlines()) <= 100
    assert told.count("word") == 60


def test_many_thread_counts_are_wrapped() -> None:
    seen = tuple(replace(sample, num_threads=r) for r in range(1, 13) for sample in samples()[:3])
    fitted = fit(seen, 2)
    told = describe(journal(tuned=Tuned(PLAN, None, fitted.model, fitted, None, seen), plan=PLAN))
    assert max(len(line) for line in told.splitlines()) <= 100
    assert "   r=12  " in told
    assert np.isfinite(fitted.median_error)


def test_what_nccl_asked_is_told_where_it_has_our_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TUNER_PLUGIN", raising=False)
    assert "NCCL" not in describe(journal())
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", str(nccl.PATH))
    # As many lines as it takes: what was asked before in this process counts, too.
    assert " ".join(describe(journal()).split()).endswith(nccl.counters().describe())
