"""Flags of `tf-libra compare` for families of strategies, and for other links and batches."""

import math
import re
from pathlib import Path

from absl import flags

from tf_libra.cli.command import flag_value, read
from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting, validation
from tf_libra.planning.family_comparison import FamilyComparison
from tf_libra.runtime.family_prediction import links_of

_FILE = "families.json"
_UNITS = {"": 1.0, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
# Largest factor on measured links, or its inverse, that is considered.
_MAX_FACTOR, _PRECISION = 1e4, 1.0001


def define_families(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_string(
        "families",
        None,
        f"JSON file of the families that training has compared; by default {_FILE} of"
        " `profile` if that is a log directory and has one",
        flag_values=values,
    )
    flags.DEFINE_string(
        "rate",
        None,
        "rate at which a worker sends, in bytes per second or as in 5gbit; needs families",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch", None, "examples of all workers per step; needs families", flag_values=values
    )


def read_families(values: flags.FlagValues) -> FamilyComparison | None:
    """Returns the families that training has compared; None without a file."""
    families, profile = flag_value(values, "families"), flag_value(values, "profile")
    path = Path(families or profile or "")
    if path.is_dir():
        path /= _FILE
        if not families and not path.exists():
            return None
    elif not families:
        return None
    return read(path, FamilyComparison.from_json)


def requested_factors(
    values: flags.FlagValues, families: FamilyComparison | None, cost: CostModel
) -> tuple[float, float]:
    """Returns the factors on link rates and on the examples of each worker.

    Args:
        values: the flags.
        families: the families as measured.
        cost: cost model for the requested number of workers.

    Raises:
        ValueError: a flag is out of its range, contradicts another one, or needs families.
    """
    links = float(flag_value(values, "link_factor"))
    examples = float(flag_value(values, "batch_factor"))
    for name, other, factor in (
        ("rate", "link_factor", links),
        ("batch", "batch_factor", examples),
    ):
        value = flag_value(values, name)
        if value is None:
            continue
        if factor != 1:
            raise ValueError(f"{name} must be given without {other}, got {value} and {factor:g}")
        if families is None:
            raise ValueError(f"{name} needs families as measured in training: --families FILE.json")
    if (text := flag_value(values, "rate")) is not None:
        assert families is not None
        links = _link_factor(cost, families.num_threads, _bytes_per_second(text))
    if (batch := flag_value(values, "batch")) is not None:
        assert families is not None
        validation.integer("batch", batch, 1, validation.MAX_INT32)
        if not families.batch:
            raise ValueError("batch needs a job that has measured its layers; give batch_factor")
        examples = batch / cost.num_workers / (families.batch / families.num_workers)
    return links, examples


def _bytes_per_second(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)([a-z]*)", text)
    try:
        number, unit = found.groups() if found else ("", "")
        rate = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        rate = 0.0
    if not 0 < rate < math.inf:
        raise ValueError(
            f"rate must be a positive number of bytes per second, or one with kbit, mbit or gbit,"
            f" got {text!r}"
        )
    return rate


def _link_factor(cost: CostModel, num_threads: int, rate: float) -> float:
    """Returns the factor on links with which a worker sends at a rate."""

    def reached(factor: float) -> float:
        return links_of(cost.with_link_rate(factor), num_threads).bytes_per_second

    low, high = 1 / _MAX_FACTOR, _MAX_FACTOR
    if not reached(low) <= rate <= reached(high):
        limits = f"{formatting.rate(reached(low))} to {formatting.rate(reached(high))}"
        raise ValueError(f"rate must be {limits} by the cost model, got {formatting.rate(rate)}")
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) >= rate else (middle, high)
    return high
