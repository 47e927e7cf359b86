"""Measures what a search gains from the results of an earlier search for another model.

    python -m benchmarks.second_job --hosts 2 --rate 1gbit --model vgg --changed vgg13

One job trains `--model` under `aiacc`; then `--changed` is trained twice: alone, and helped by what
the first has kept in `cache_dir`. A search is there with the first step whose setting takes at most
1.02 of the step of the plan that this search has come to. What settings take is measured
afterwards, in turns (`benchmarks/jobs/second_job.py`); the steps that count are those of the
search, the first step of a new setting, which tells nothing, among them.

The goal: helped it is there in half the steps that it takes alone, or fewer.

The JSON: {"alone": {"steps", "settings", "to_final": one per step, "steps_until_near", "notes"},
"helped": {the same}, "settings", "machine", "versions"}.
"""

import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from benchmarks.jobs.job import SecondJob
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError, is_model

NEAR = 1.02

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()

_PLACING = Placing(FLAGS)
_CHANGED = flags.DEFINE_string(
    "changed", "vgg13", "The model that is trained second, named as --model.", flag_values=FLAGS
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 8, "Steps of each tried setting, in turns.", lower_bound=2, flag_values=FLAGS
)


flags.register_validator("changed", is_model, flag_values=FLAGS)


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    try:
        measured = _PLACING.measured(
            "second_job", SecondJob, changed=_CHANGED.value, rounds=_ROUNDS.value
        )
    except WorkersFailedError as error:
        print(f"second_job: {error}", file=sys.stderr)
        return 1
    document = {
        name: measured[name] | {"steps_until_near": steps_until_near(measured[name]["to_final"])}
        for name in ("alone", "helped")
    }
    document |= {
        "settings": _PLACING.settings() | {"rounds": _ROUNDS.value} | measured["settings"],
        "machine": here,
        "versions": versions(),
    }
    _PLACING.write(document)
    print(summary(document))
    return 0


def steps_until_near(to_final: Sequence[float]) -> int | None:
    """Steps until one was within 2 % of the plan that the search came to; None: none ever was.

    Args:
        to_final: of every step of the search, its plan's step to the final plan's.
    """
    return next((step for step, ratio in enumerate(to_final, start=1) if ratio <= NEAR), None)


def summary(document: dict[str, Any]) -> str:
    """A line for each search."""
    settings = document["settings"]
    lines = [f"{settings['changed']} after {settings['model']}, {settings['network']}"]
    for name in ("alone", "helped"):
        job = document[name]
        until = job["steps_until_near"]
        lines.append(
            f"{name}: near its final step after {'no' if until is None else until} of"
            f" {job['steps']} steps, {job['settings']} settings; the first was"
            f" {job['to_final'][0]:.3f} of it"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
