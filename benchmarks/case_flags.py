"""Flags of benchmarks that run one case after the other and save each result."""

import time

from absl import flags


def define(values: flags.FlagValues, name: str, document: str, rounds: int) -> None:
    """Defines them.

    Args:
        values: receives the flags.
        name: of the file of results.
        document: default of the page whose tables are made from the results.
        rounds: default number of rounds.
    """
    flags.DEFINE_string(
        "json",
        f"benchmarks/results/{name}.json",
        "The results, saved case by case.",
        flag_values=values,
    )
    flags.DEFINE_string("document", document, "Filled in.", flag_values=values)
    flags.DEFINE_float(
        "minutes", None, "Begin nothing after them.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_integer("rounds", rounds, "Of step times.", lower_bound=1, flag_values=values)
    flags.DEFINE_string(
        "only",
        "",
        "Cases whose name has this in it; with a $ at its end, those that end so.",
        flag_values=values,
    )
    flags.DEFINE_bool("remeasure", False, "Measure saved results again.", flag_values=values)


def is_selected(values: flags.FlagValues, case: str) -> bool:
    """Returns whether `--only` selects the case of a name."""
    return values.only in f"{case}$"


def deadline(values: flags.FlagValues) -> float:
    """Returns the time of `time.monotonic()` after which no measurement begins."""
    return float("inf") if values.minutes is None else time.monotonic() + 60 * values.minutes
