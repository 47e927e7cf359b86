"""Text report of a training function."""

from dataclasses import replace

import numpy as np
import pytest

from tf_libra.autotune import Phase, TuningResult
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.backends import nccl_environment, nccl_tuner
from tf_libra.cost_model import ContentionModel, OverlapSample, fit
from tf_libra.internal import formatting
from tf_libra.planning import make_plan
from tf_libra.profiling.overlap_samples import MeasuredGroup, MeasuredTimeline
from tf_libra.reporting.run_history import RunSnapshot
from tf_libra.reporting.text_report import (
    describe,
    fit_line,
    fit_table,
    plan_table,
    summary_line,
)
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

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
    table = plan_table(TuningResult(PLAN, PROFILE, MODEL))
    lines = table.splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["group", "tensors", "size", "threads", "predicted", "start", "end"]
    spans = simulate(PROFILE, PLAN, MODEL).groups
    for line, group, size, span in zip(
        lines[1:], ("2 (0..1)", "1 (2..2)"), ("4.002 MB", "250 MB"), spans, strict=True
    ):
        assert group in line
        assert size in line
        assert formatting.time(span.start_seconds) in line
        assert line.endswith(formatting.time(span.end_seconds))


def test_table_has_a_row_per_gather() -> None:
    gathers = (TensorGroup(1, 3, 2), TensorGroup(0, 1, 1))
    result = TuningResult(replace(PLAN, gathers=gathers), PROFILE, MODEL)
    *_, first, second = plan_table(result).splitlines()
    assert [first.split()[:5], second.split()[:5]] == [
        ["gather", "0", "2", "(2..1)", "250"],
        ["gather", "1", "1", "(0..0)", "4"],
    ]
    last = simulate(PROFILE, result.plan, MODEL).gathers[-1]
    assert second.endswith(formatting.time(last.end_seconds))
    known = replace(result, rest_seconds=0.2)
    timelines = known.predicted(known.plan), result.predicted(known.plan)
    assert timelines[0] is not None and timelines[1] is not None
    assert timelines[0].forward_delay_seconds < timelines[1].forward_delay_seconds


def test_explanation_and_table_predict_the_same_gathers() -> None:
    """Both take the time outside backward for the forward pass, which gathers overlap."""
    gathers = (TensorGroup(1, 3, 2), TensorGroup(0, 1, 1))
    result = TuningResult(replace(PLAN, gathers=gathers), PROFILE, MODEL, rest_seconds=0.1)
    timeline = result.predicted(result.plan)
    assert timeline is not None
    alone = simulate(PROFILE, result.plan, MODEL)
    assert timeline.forward_delay_seconds < alone.forward_delay_seconds
    run = RunSnapshot("step", conclusion=result)
    assert f"takes {formatting.time(timeline.forward_delay_seconds)} longer" in describe(
        run
    ).replace("\n", " ")


def test_table_without_a_model_predicts_nothing() -> None:
    for table in (
        plan_table(TuningResult(PLAN, PROFILE)),
        plan_table(TuningResult(PLAN, None, MODEL)),
    ):
        assert [line.split()[-2:] for line in table.splitlines()[1:]] == [["-", "-"]] * 2


def test_plan_without_prediction_is_described() -> None:
    """The model has no positive rate for 22 threads."""
    groups = (TensorGroup(0, 2, 22), TensorGroup(2, 3, 22))
    plan = Plan.for_profile(PROFILE, groups, 2, "by hand", notes=("a note",))
    conclusion = TuningResult(plan, PROFILE, MODEL)
    assert [line.split()[-2:] for line in plan_table(conclusion).splitlines()[1:]] == [
        ["-", "-"]
    ] * 2
    reported = describe(RunSnapshot(phase=Phase.RUN, conclusion=conclusion)).splitlines()
    assert any(line.startswith("the model cannot predict this plan: compute:") for line in reported)
    assert "note: a note" in reported
    assert max(map(len, reported)) <= 100


def test_report_before_the_first_step_is_the_phase() -> None:
    assert describe(RunSnapshot()) == "phase: trace"


def test_remarks_are_notes() -> None:
    reported = describe(RunSnapshot(remarks=("Horovod reduces all of them", "and so on")))
    assert reported.splitlines()[1:] == ["note: Horovod reduces all of them", "note: and so on"]


def samples() -> tuple[OverlapSample, ...]:
    """Returns exclusive all-reduces of several sizes, exactly as the model predicts them."""
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
    """Returns the first group in two parts, as for tensors of two dtypes."""
    return (
        MeasuredGroup(0, 1, 8, 0.0, start_seconds, start_seconds + 0.01),
        MeasuredGroup(0, 1, 8, 0.0, start_seconds + 0.02, start_seconds + 0.05),
    )


def test_plan_table_has_measured_before_predicted_times() -> None:
    timelines = [MeasuredTimeline(groups(start), 0.1, 0.2) for start in (0.1, 0.3, 0.2)]
    header, first, second = plan_table(TuningResult(PLAN, PROFILE, MODEL), timelines).splitlines()
    assert header.index("measured start") < header.index("predicted start")
    assert first.split()[6:10] == ["200", "ms", "250", "ms"]
    assert second.split()[6:8] == ["-", "-"]


def test_report_fits_into_100_columns() -> None:
    plan = replace(make_plan(PROFILE, MODEL, "libra"), notes=("a note to the reader",))
    seen = samples()
    fitted = fit(seen, 2)
    reported = describe(
        RunSnapshot(
            phase=Phase.RUN,
            conclusion=TuningResult(plan, PROFILE, fitted.model, 0.034, seen, plan.notes),
            timelines=(
                MeasuredTimeline(groups(0.1), 0.1, 0.2),
                MeasuredTimeline(groups(0.3), 0.1, 0.4),
            ),
            step_seconds={Phase.MEASURE: (0.4, 0.5, 0.6), Phase.RUN: (0.4,)},
        )
    )
    assert max(len(line) for line in reported.splitlines()) <= 100
    assert reported.startswith("phase: run\n")
    assert "9 samples" in reported
    assert "3.4 %" in reported
    assert "a note to the reader" in reported
    assert plan.predicted_seconds is not None
    measured = f"backward: measured 300 ms, predicted {formatting.time(plan.predicted_seconds)}"
    assert measured in reported
    assert (
        "step: measured 400 ms (middle half 400 ms to 400 ms, 1 steps under the plan)" in reported
    )
    # Steps before the plan ran at another time, so they do not compare.
    assert "500 ms" not in reported
    for r in (1, 2, 4):
        assert f"    r={r}  " in reported


def test_rates_that_no_sample_determines_are_no_figures() -> None:
    small = replace(samples()[0], num_bytes=8)
    conclusion = TuningResult(PLAN, PROFILE, MODEL, 0.5, (small,))
    for text in (fit_line(conclusion), "\n".join(fit_table(conclusion))):
        assert text.count("undetermined") == 2
    known = TuningResult(PLAN, PROFILE, MODEL, 0.5, samples())
    assert "undetermined" not in fit_line(known)
    assert formatting.rate(float(MODEL.exclusive_rate(4))) in fit_line(known)


def test_plan_without_predicted_time_has_measured_times() -> None:
    reported = describe(
        RunSnapshot(
            phase=Phase.RUN,
            conclusion=TuningResult(replace(PLAN, predicted_seconds=None)),
            timelines=(MeasuredTimeline((), 0.1, 0.25),),
        )
    )
    assert "backward: measured 250 ms" in reported
    assert "ms, predicted" not in reported


def test_summary_has_steps_plan_and_comparison() -> None:
    counts = {Phase.MEASURE: 6, Phase.RUN: 4}
    reported = RunSnapshot("step", phase=Phase.MEASURE, num_steps={Phase.MEASURE: 1})
    assert summary_line(reported) == (
        "step: 1 step, ended before a plan was active (phase measure)"
    )
    assert summary_line(replace(reported, phase=Phase.RUN)) == "step: 1 step, nothing to plan"
    reported = replace(reported, phase=Phase.RUN, num_steps=counts, conclusion=TuningResult(PLAN))
    under = "step: 10 steps, 4 of them under a plan of by hand (2 groups)"
    assert summary_line(reported) == under
    reported = replace(reported, step_seconds={Phase.RUN: (0.3, 0.3)})
    assert summary_line(reported) == f"{under}, 300 ms each"
    other = replace(reported, other_steps={"one-rank": 7, "spp": 1})
    assert summary_line(other) == (
        "step: 18 steps, 4 of them under a plan of by hand (2 groups), 300 ms each, 7 under"
        " one-rank, 1 under spp"
    )
    # Earlier steps do not compare; interleaved trials do.
    reported = replace(reported, step_seconds={Phase.RUN: (0.3,), Phase.MEASURE: (0.4,)})
    assert summary_line(reported) == f"{under}, 300 ms each"
    raced = replace(reported, conclusion=TuningResult(PLAN, race=race((0.3, 0.31, 0.29, 0.3), 0.3)))
    assert summary_line(raced).startswith(f"{under}, 300 ms each; -23.1 % (")
    assert "against one all-reduce" in summary_line(raced)
    raced = replace(reported, conclusion=TuningResult(PLAN, race=race((0.2, 0.5, 0.2, 0.5), 0.0)))
    assert f"{formatting.NO_DIFFERENCE} against one all-reduce" in summary_line(raced)


def race(seconds: tuple[float, ...], slower: float) -> Race:
    """Returns trials of the plan and of one all-reduce that takes longer by a share."""
    plan = replace(PLAN, groups=(TensorGroup(0, 3, 4),), strategy="syneasgd")
    return Race(
        (
            Candidate(PLAN, 0.3, seconds),
            Candidate(plan, 0.4, tuple(second * (1 + slower) for second in seconds)),
        )
    )


def test_missing_trials_are_reported_only_without_rounds() -> None:
    """Trials without one all-reduce, or with one round, are trials without that comparison."""
    reported = "no interleaved trials were run"
    split = replace(PLAN, groups=(TensorGroup(0, 1, 4), TensorGroup(1, 3, 16)))
    of_groups = Race((Candidate(PLAN, 0.3, (0.3,) * 4), Candidate(split, 0.4, (0.4,) * 4)))
    facts = RunSnapshot(step_seconds={Phase.RUN: (0.3,)})
    for raced in (of_groups, race((0.3,), 0.1)):
        found = describe(replace(facts, conclusion=TuningResult(PLAN, race=raced)))
        assert reported not in found and "interleaved trials:" in found
    for none in (None, race((), 0.1)):
        text = " ".join(describe(replace(facts, conclusion=TuningResult(PLAN, race=none))).split())
        assert reported in text


def test_measured_comes_before_predicted() -> None:
    conclusion = TuningResult(PLAN, PROFILE, MODEL, race=race((0.3,) * 4, 0.1))
    reported = describe(
        RunSnapshot(requested="libra", conclusion=conclusion, step_seconds={Phase.RUN: (0.3,)})
    )
    order = [
        "instead of the requested libra",
        "step: measured",
        "interleaved trials:",
        "predicted start",
        "Backward takes",
    ]
    places = [reported.index(words) for words in order]
    assert places == sorted(places)
    assert max(len(line) for line in reported.splitlines()) <= 100


def test_report_begins_with_the_reason_for_another_strategy() -> None:
    of_libra = replace(PLAN, groups=(TensorGroup(0, 1, 1), TensorGroup(1, 3, 2)), strategy="libra")
    raced = race((0.3,) * 4, 0.1)
    raced = Race((*raced.candidates, Candidate(of_libra, 0.1, (0.36,) * 4)))
    facts = RunSnapshot(
        requested="libra", conclusion=TuningResult(PLAN, PROFILE, MODEL, race=raced)
    )
    first = " ".join(describe(facts).split("phase: trace\n")[1].split())
    assert first.startswith("Active plan: by hand instead of the requested libra")
    assert first.index("libra in 2 groups") < first.index("+20.0 %")
    assert "not of" not in describe(replace(facts, requested="by hand"))
    # Every plan in the trials is one of "auto".
    assert "instead of" not in describe(replace(facts, requested="auto"))


@pytest.mark.parametrize(("error", "most"), [(0.3, 0.25), (0.3, 0.4), (0.1, 0.05), (None, 0.25)])
def test_prediction_of_an_untrusted_model_has_a_caveat(error: float | None, most: float) -> None:
    conclusion = TuningResult(PLAN, PROFILE, MODEL, error, samples(), max_model_error=most)
    reported = describe(RunSnapshot(conclusion=conclusion))
    assert ("predicted by a model that misses by" in reported) == (
        error is not None and error > most
    )
    assert ("predicted by the fitted model:" in reported) != (
        "by a model that misses by" in reported
    )
    if error == 0.3 and most == 0.25:
        assert "predicted by a model that misses by 30.0 %:\nby hand: 2 groups" in reported


def test_long_notes_are_wrapped() -> None:
    note = " ".join(["word"] * 60)
    reported = describe(RunSnapshot(conclusion=TuningResult(replace(PLAN, notes=(note,)))))
    assert max(len(line) for line in reported.splitlines()) <= 100
    assert reported.count("word") == 60


def test_many_thread_counts_are_wrapped() -> None:
    seen = tuple(replace(sample, num_threads=r) for r in range(1, 13) for sample in samples()[:3])
    fitted = fit(seen, 2)
    conclusion = TuningResult(PLAN, None, fitted.model, None, seen)
    reported = describe(RunSnapshot(conclusion=conclusion))
    assert max(len(line) for line in reported.splitlines()) <= 100
    assert "   r=12  " in reported
    assert np.isfinite(fitted.median_error)


def test_nccl_requests_are_reported_under_our_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TUNER_PLUGIN", raising=False)
    assert "NCCL" not in describe(RunSnapshot())
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", str(nccl_environment.PATH))
    # Earlier requests of NCCL in this process are part of the counters.
    assert " ".join(describe(RunSnapshot()).split()).endswith(nccl_tuner.counters().describe())
