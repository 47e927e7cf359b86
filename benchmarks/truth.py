"""Accuracy of the model: plans that tuning has not seen, predicted and measured.

    python -m benchmarks.truth --np 2 --model cnn5m --plans 12 --rounds 10 --json out.json
    python -m benchmarks.truth --hosts 2 --rate 5gbit --model transformer
    python -m benchmarks.truth --strategy auto

Tunes as training does, draws plans that differ in number and sizes of groups and in threads, every
other one on two streams where --strategy has measured what these cost each other, and runs them in
turns, in an order that is drawn again for each round. Every worker has one core.

What a number means:
- `pace`: of each round, how many times as long as usual the plans take in it that tuning has
  sampled, in the median over these; they take turns with the others. A machine that others use,
  too, may be a third slower for some seconds. What is measured in a round is divided by its pace.
- `measured_step_seconds`: median over the rounds of rank 0's wall seconds of an untraced step.
- `measured_backward_seconds`: median over the same steps of the time from the start of backward to
  the end of its last all-reduce. That end is stamped in every step; where in a step backward
  begins is the median of some traced ones, of all plans, since it does not depend on them. Tracing
  costs time: taken is its share of the time until the first gradients are ready, which is stamped
  in every step as well, and at the latest that time itself.
- `drift`: how many times as long the plans that tuning has sampled take in these rounds as they
  took then, in the steady state that the model was fitted to (`autotune/step_times.py`).
  Predictions are for the machine as it is in the rounds: those of the model, times the drift.
- `measuring`: steps and seconds from the first step of tuning until its candidates are planned, so
  without trials of these.
  `first_seconds` are those of the first step of each plan, which makes the plan's graph.
- `fits`: the model is fitted a second time, to as many more steps, after the trials. `rates` are
  those of computation and of overlapped and exclusive all-reduces under either model, for each of
  `threads`; `difference` is the largest |second / first - 1| of any of them.
- A plan's `noise`: how far the medians of the first and the second half of its rounds lie apart,
  relative to the median of all; `noise` of the whole: the median over the plans.
- `all_reduces` of a plan: each of its all-reduces, median over the rounds, from the arrival of the
  last rank on: its part that overlaps backward computation or updates (`overlapped_seconds`), its
  other part (`exclusive_seconds`), and the model's time without waiting, times the drift. One is
  `in_bucket` if the shaped link passes its bytes immediately after a pause (`benchmarks.cluster`):
  no wire's rate limits it, which the model predicts. Another is `alone` if most of it overlaps
  neither, else `overlapped`. Updates have no timestamps: when they ran follows from the model.
  Those of plans on two streams are left out: they slow each other.
- `noise` of an all-reduce: as of a plan, of its seconds. Half of it is about what a model would be
  missed by that knew all medians of infinitely many rounds.
- `hindsight_error` of all-reduces: median error of a startup and a rate that are fitted to these
  all-reduces themselves (least absolute deviations of logarithms). What such a model cannot predict
  remains, as when a core runs another thread first.
- An error is predicted / measured - 1. `bias` is the median error, `median_error` and `worst_error`
  are of its absolute value; `rank_correlation` is Spearman's, None where all plans are alike.

The JSON: {"plans": [{"plan", "predicted_backward_seconds", "measured_backward_seconds",
"predicted_step_seconds", "measured_step_seconds", "noise", "all_reduces"}], "backward":
{"median_error", "worst_error", "bias", "rank_correlation"}, "step": {the same}, "all_reduce":
{"alone": {"count", "median_error", "bias", "hindsight_error", "noise"}, "overlapped": {the same},
"in_bucket": {the same}}, "noise", "drift", "pace", "measuring": {"steps", "seconds",
"first_seconds"}, "fits": {"threads", "rates": {"compute", "overlapped", "exclusive"},
"difference"}, "settings", "machine", "versions"}. An all-reduce: {"num_bytes", "num_threads",
"overlapped_seconds", "exclusive_seconds", "predicted_seconds", "noise"}.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags
from scipy import optimize, stats

from benchmarks.cluster import burst_bytes
from benchmarks.jobs.job import TruthJob
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError
from tf_libra import strategies

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
_PLACING = Placing(FLAGS, launcher=True)
flags.DEFINE_integer("plans", 12, "Plans that are drawn.", lower_bound=2, flag_values=FLAGS)
flags.DEFINE_enum(
    "strategy",
    "libra",
    [name for name in strategies.BY_NAME if name != strategies.Aiacc.name],
    "Which tunes: what it measures is what predicts. AIACC's search predicts nothing.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "rounds", 10, "Steps of each plan that count.", lower_bound=2, flag_values=FLAGS
)


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here, rounds, strategy = machine(), FLAGS.rounds, FLAGS.strategy
    try:
        measured = _PLACING.measured(
            "unseen", TruthJob, plans=FLAGS.plans, rounds=rounds, strategy=strategy
        )
    except WorkersFailedError as error:
        print(f"truth: {error}", file=sys.stderr)
        return 1
    document = evaluate(measured["plans"], _bucket_bytes()) | {
        "drift": measured["drift"],
        "pace": measured["pace"],
        "measuring": measured["measuring"],
        "fits": compare_fits(measured["fits"]),
        "settings": _PLACING.settings()
        | {"rounds": rounds, "strategy": strategy}
        | measured["settings"],
        "machine": here,
        "versions": versions(),
    }
    _PLACING.write(document)
    print(table(document))
    return 0


def _bucket_bytes() -> int:
    """Returns the bytes that the workers' links pass immediately after a pause."""
    return burst_bytes(FLAGS.rate) if FLAGS.rate is not None and FLAGS.flow_rate is None else 0


def evaluate(plans: Sequence[dict[str, Any]], bucket_bytes: int = 0) -> dict[str, Any]:
    """The document's judgement of what was measured of each plan.

    Args:
        plans: each with "plan", predicted seconds, and "step_seconds" and "backward_seconds" of
            every round, and "all_reduces"; a plan that could never be traced has no measured
            backward.
        bucket_bytes: that a worker sends without waiting for the link.
    """
    rows = [
        {
            "plan": plan["plan"],
            "predicted_backward_seconds": plan["predicted_backward_seconds"],
            "measured_backward_seconds": _median(plan["backward_seconds"]),
            "predicted_step_seconds": plan["predicted_step_seconds"],
            "measured_step_seconds": _median(plan["step_seconds"]),
            "noise": _noise(plan["step_seconds"]),
            "all_reduces": plan["all_reduces"],
        }
        for plan in plans
    ]
    return {
        "plans": rows,
        "backward": _errors(rows, "backward"),
        "step": _errors(rows, "step"),
        "all_reduce": _all_reduce_errors(rows, bucket_bytes),
        "noise": float(np.median([row["noise"] for row in rows])),
    }


def compare_fits(fits: dict[str, Any]) -> dict[str, Any]:
    """Returns the rates of two fits with the largest relative difference of any.

    Args:
        fits: "threads", and "rates": for each kind of rate, those of the first and the second fit.
    """
    pairs = [np.array(both, float) for both in fits["rates"].values()]
    difference = max(float(np.max(np.abs(second / first - 1))) for first, second in pairs)
    return fits | {"difference": difference}


def _median(seconds: Sequence[float]) -> float | None:
    return float(np.median(seconds)) if seconds else None


def _noise(seconds: Sequence[float]) -> float:
    half = len(seconds) // 2
    first, second = np.median(seconds[:half]), np.median(seconds[half:])
    return float(abs(first - second) / np.median(seconds))


def _errors(rows: Sequence[dict[str, Any]], quantity: str) -> dict[str, float | None]:
    pairs = np.array(
        [
            (row[f"predicted_{quantity}_seconds"], row[f"measured_{quantity}_seconds"])
            for row in rows
            if row[f"measured_{quantity}_seconds"] is not None
        ],
        float,
    ).reshape(-1, 2)
    if not len(pairs):
        return dict.fromkeys(("median_error", "worst_error", "bias", "rank_correlation"))
    predicted, measured = pairs.T
    errors = predicted / measured - 1
    varied = np.ptp(predicted) > 0 and np.ptp(measured) > 0
    return {
        "median_error": float(np.median(np.abs(errors))),
        "worst_error": float(np.max(np.abs(errors))),
        "bias": float(np.median(errors)),
        "rank_correlation": float(stats.spearmanr(predicted, measured)[0]) if varied else None,
    }


def _all_reduce_errors(
    rows: Sequence[dict[str, Any]], bucket_bytes: int
) -> dict[str, dict[str, float | None]]:
    kinds: dict[str, list[tuple[float, ...]]] = {"alone": [], "overlapped": [], "in_bucket": []}
    for plan in rows:
        for row in plan["all_reduces"]:
            overlapped, exclusive = row["overlapped_seconds"], row["exclusive_seconds"]
            num_workers = plan["plan"]["num_workers"]
            kind = "alone" if exclusive > overlapped else "overlapped"
            if row["num_bytes"] * 2 * (num_workers - 1) <= bucket_bytes * num_workers:
                kind = "in_bucket"
            kinds[kind].append(
                (row["num_bytes"], overlapped + exclusive, row["predicted_seconds"], row["noise"])
            )
    found = {}
    for kind, columns in kinds.items():
        num_bytes, seconds, predicted, noise = np.array(columns, float).reshape(-1, 4).T
        errors = predicted / seconds - 1
        found[kind] = {
            "count": len(errors),
            "median_error": float(np.median(np.abs(errors))) if len(errors) else None,
            "bias": float(np.median(errors)) if len(errors) else None,
            "hindsight_error": _hindsight_error(num_bytes, seconds) if len(errors) else None,
            "noise": float(np.median(noise)) if len(errors) else None,
        }
    return found


def _hindsight_error(num_bytes: np.ndarray, seconds: np.ndarray) -> float:
    """Median error of the line over bytes of least absolute deviations of logarithms."""

    def predicted(logs: np.ndarray) -> Any:
        return np.exp(logs[0]) + np.exp(logs[1]) * num_bytes

    def deviation(logs: np.ndarray) -> float:
        return float(np.abs(np.log(predicted(logs) / seconds)).sum())

    starts = (
        np.log([np.quantile(seconds, low), np.quantile(seconds / num_bytes, high)])
        for low, high in ((0.1, 0.5), (0.5, 0.5), (0.1, 0.1), (0.5, 0.1))
    )
    fits = [optimize.minimize(deviation, start, method="Nelder-Mead") for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    return float(np.median(np.abs(predicted(best.x) / seconds - 1)))


def table(document: dict[str, Any]) -> str:
    """Plans by rows, predicted and measured, and what is to be said of all."""
    settings = document["settings"]
    lines = [
        f"{settings['model']}, {settings['np']} workers, {settings['network']},"
        f" {settings['rounds']} rounds, after {settings['tuning_steps']} steps of tuning,"
        f" {document['measuring']['steps']} of them without trials, in"
        f" {document['measuring']['seconds']:.1f} s"
        f" ({sum(document['measuring']['first_seconds']):.1f} s in plans' first steps)",
        "",
        f"{'groups':>6}  {'threads':16}{'backward, ms':>22}  {'step, ms':>22}  {'noise':>6}",
        f"{'':6}  {'':16}{'predicted measured':>22}  {'predicted measured':>22}",
    ]
    for row in document["plans"]:
        # A stream that is not the first is marked.
        threads = ",".join(
            f"{group['num_threads']}{chr(39) * group.get('stream', 0)}"
            for group in row["plan"]["groups"]
        )
        cells = [
            "".join(
                f"{'' if row[key] is None else format(row[key] * 1e3, '.1f'):>11}"
                for key in (f"predicted_{quantity}_seconds", f"measured_{quantity}_seconds")
            )
            for quantity in ("backward", "step")
        ]
        short = threads if len(threads) <= 14 else f"{threads[:11]}..."
        groups, noise = len(row["plan"]["groups"]), row["noise"]
        lines.append(f"{groups:>6}  {short:16}{cells[0]}  {cells[1]}  {noise:6.1%}")
    for quantity in ("backward", "step"):
        errors = document[quantity]
        if errors["median_error"] is None:
            lines.append(f"{quantity}: never measured")
            continue
        ranked = errors["rank_correlation"]
        lines.append(
            f"{quantity}: median error {errors['median_error']:.1%},"
            f" worst {errors['worst_error']:.1%},"
            f" bias {errors['bias']:+.1%}, rank correlation"
            f" {'none' if ranked is None else format(ranked, '.2f')}"
        )
    for kind, errors in document["all_reduce"].items():
        if errors["median_error"] is not None:
            lines.append(
                f"all-reduce, {kind.replace('_', ' ')}: median error"
                f" {errors['median_error']:.1%}, bias {errors['bias']:+.1%},"
                f" fitted in hindsight {errors['hindsight_error']:.1%},"
                f" noise {errors['noise']:.1%}, of {errors['count']}"
            )
    lines.append(f"noise of a plan's step: {document['noise']:.1%} in the median")
    lines.append(
        f"plans that tuning had sampled take {document['drift']:.3f} times as long as then"
    )
    lines.append(
        f"a second fit differs in any rate by at most {document['fits']['difference']:.1%}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
