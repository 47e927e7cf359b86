"""Saved results of a case's measurements, and their comparison with the goals."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks import results

# `libra` to the best of the others, in the median over rounds: never above the one, and at most the
# other on a third of the cases.
MOST_TO_BEST, LESS_THAN_BEST, SHARE_LESS = 1.02, 0.95, 1 / 3
# Predictions of plans that tuning has not seen.
STEP_ERROR, BACKWARD_ERROR, WORST_ERROR, BIAS, RANK_CORRELATION = 0.03, 0.04, 0.08, 0.02, 0.8
# Of what Horovod loses to the limit, at 5 Gbit/s.
SHARE_OF_WIRE = 0.70
# `libra` to TensorFlow's own strategy on its ring, in the median over rounds.
MOST_TO_PLAIN = 0.75
# Single all-reduces that the wire's rate limits, as `benchmarks.truth` has them.
_ON_THE_WIRE = "alone", "overlapped"
# Of these, and of measuring before any trial.
ALL_REDUCE_ERROR, MEASURING_STEPS, MEASURING_SECONDS = 0.10, 25, 3.0
# Rates of a second fit to those of the first.
FITS_DIFFERENCE = 0.10
# Until a plan is active.
TUNING_STEPS, TUNING_SECONDS = 60, 30.0


def of_step_time(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.step_time`."""
    seconds = document["seconds"]
    medians = results.medians(document)
    others = {name: value for name, value in medians.items() if name not in ("none", "libra")}
    best = min(others, key=lambda name: others[name])
    return {
        "median_seconds": medians,
        "best": best,
        "to_best": results.spread(np.divide(seconds["libra"], seconds[best])),
        "to_horovod": results.spread(np.divide(seconds["libra"], seconds["horovod"])),
        "plan": _plan(document["plan"]["libra"]),
        "tuning": document["tuning"]["libra"],
    }


def _plan(plan: Mapping[str, Any]) -> str:
    threads = [group["num_threads"] for group in plan["groups"]]
    used = f"{min(threads)}" if len(set(threads)) == 1 else f"{min(threads)} to {max(threads)}"
    return f"{plan['strategy']}, {len(threads)} group{'s' * (len(threads) > 1)}, {used} threads"


def of_truth(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.truth`."""
    return {key: document[key] for key in ("step", "backward", "noise")} | {
        # Plans whose medians lie within the noise cannot be ranked.
        "spread": _spread([plan["measured_step_seconds"] for plan in document["plans"]]),
        "drift": document["drift"],
        "pace": [min(document["pace"]), max(document["pace"])],
        "measuring": document["measuring"],
        "fits": document["fits"]["difference"],
        "all_reduce": document["all_reduce"],
    }


def _spread(seconds: Iterable[float]) -> float:
    values = np.array(list(seconds))
    return float(np.ptp(values) / np.median(values))


def of_wire(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.wire`."""
    return {key: document[key] for key in ("limit_seconds", "shares", "core_seconds")}


def of_plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results of `benchmarks.step_time` against MultiWorkerMirroredStrategy."""
    seconds = document["seconds"]
    return {
        "median_seconds": results.medians(document),
        "to_plain": results.spread(np.divide(seconds["libra"], seconds["mwms"])),
        "to_one_worker": results.spread(np.divide(seconds["libra"], seconds["one-worker"])),
    }


def of_one_worker(document: Mapping[str, Any]) -> dict[str, Any]:
    """Results of `benchmarks.step_time` against one worker that trains the joint batch."""
    seconds = document["seconds"]
    return {
        "median_seconds": results.medians(document),
        "to_one_worker": {
            name: results.spread(np.divide(seconds[name], seconds["one-worker"]))
            for name in ("horovod", "libra")
        },
        "rounds": document["rounds"],
    }


SUMMARIES = {
    "step_time": of_step_time,
    "truth": of_truth,
    "one_worker": of_one_worker,
    "wire": of_wire,
    "plain": of_plain,
}


def has_ranks(truth: Mapping[str, Any]) -> bool:
    """Returns whether the plans' steps differ by more than noise, so that they can be ranked."""
    return bool(truth["spread"] > 4 * truth["noise"])


def on_the_wire(truth: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the errors of single all-reduces that the wire's rate limits, by kind."""
    found = truth.get("all_reduce", {})  # results of earlier versions have none
    return {kind: found[kind] for kind in _ON_THE_WIRE if kind in found}


def misses(benchmark: str, result: Mapping[str, Any]) -> list[str]:
    """The goals that a case's outcome misses, in words; empty where it meets them all."""
    if benchmark == "step_time":
        limits = [
            ("to the best", result["to_best"]["median"], MOST_TO_BEST, "{:.3f}"),
            ("steps of tuning", result["tuning"]["steps"], TUNING_STEPS, "{:d}"),
            ("seconds of tuning", result["tuning"]["seconds"], TUNING_SECONDS, "{:.0f}"),
        ]
    elif benchmark == "truth":
        limits = []
        for quantity, most in (("step", STEP_ERROR), ("backward", BACKWARD_ERROR)):
            errors = result[quantity]
            if errors["median_error"] is None:
                limits.append((f"{quantity} never measured", 1.0, 0.0, "{:.0f}"))
                continue
            limits.append((f"{quantity}'s median error", errors["median_error"], most, "{:.1%}"))
            limits.append(
                (f"{quantity}'s worst error", errors["worst_error"], WORST_ERROR, "{:.1%}")
            )
            limits.append((f"{quantity}'s bias", abs(errors["bias"]), BIAS, "{:.1%}"))
        for kind, errors in on_the_wire(result).items():
            if errors["median_error"] is not None:
                what = f"all-reduces {kind}: median error"
                limits.append((what, errors["median_error"], ALL_REDUCE_ERROR, "{:.1%}"))
        if "measuring" in result:  # results of earlier versions have neither
            taken = result["measuring"]
            limits.append(("steps of measuring", taken["steps"], MEASURING_STEPS, "{:d}"))
            limits.append(("seconds of measuring", taken["seconds"], MEASURING_SECONDS, "{:.1f}"))
        if "fits" in result:
            limits.append(("rates of a second fit", result["fits"], FITS_DIFFERENCE, "{:.1%}"))
        if has_ranks(result):
            ranked = result["step"]["rank_correlation"] or 0.0
            limits.append(("1 - rank correlation", 1 - ranked, 1 - RANK_CORRELATION, "{:.2f}"))
    elif benchmark == "plain":
        limits = [("to the plain strategy", result["to_plain"]["median"], MOST_TO_PLAIN, "{:.3f}")]
    else:
        share = (result["shares"] or {}).get("libra")
        missing = 0.0 if share is None else 1 - share
        limits = [("of the wire not won back", missing, 1 - SHARE_OF_WIRE, "{:.2f}")]
    # Limits are inclusive, and 1 - 0.8 is not quite 0.2.
    return [
        f"{what} {form.format(value)}, at most {form.format(limit)}"
        for what, value, limit, form in limits
        if value > limit + 1e-9
    ]
