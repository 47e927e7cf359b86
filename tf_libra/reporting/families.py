"""Families of strategies as record, card, text and file, the same for all readers."""

import logging
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tf_libra.internal import formatting
from tf_libra.internal.values import Count
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow
from tf_libra.reporting.logdir_files import documents, write
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument
from tf_libra.reporting.tensorboard.views import card_registry


@record_types.register
@dataclass(frozen=True)
class FamilyRecord(RecordDocument):
    """Families of strategies side by side, once one of them goes on.

    Attributes:
      function: name of the training function.
      step: number of steps that trials have taken.
      families: the families.
    """

    function: str
    step: Count
    families: FamilyComparison

    KIND: ClassVar[str] = "families"

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries, the last of which counts."""
        return f"{self.function}/{self.KIND}"


@card_registry.register("families", FamilyRecord)
def families_view(record: FamilyRecord) -> dict[str, Any]:
    """Return families as JSON values: the comparison with one worker, and a row for each."""
    families = record.families
    return {
        "function": record.function,
        "step": record.step,
        "active": families.active,
        "compared": "" if families.one_worker is None else families.one_worker.describe(),
        "chosen": describe_choice(families),
        "trials": "" if families.trials is None else families.trials.describe(),
        "rows": [
            {
                "name": row.name,
                "arguments": row.arguments,
                "predicted_seconds": row.predicted_seconds,
                "is_bound": row.is_bound,
                "measured_seconds": row.measured_seconds,
                "left_out": row.left_out,
            }
            for row in families.rows
        ],
    }


def describe_families(families: FamilyComparison, remark: str = "") -> list[str]:
    """Returns the comparison with one worker, a table, and reasons, of at most 100 columns.

    Args:
        families: the families.
        remark: what follows the comparison with one worker, in a clause; may be empty.
    """
    lines = []
    if families.one_worker is not None:
        lines += _wrapped(families.one_worker.describe() + (f"; {remark}" if remark else ""))
    if any(row.seconds < math.inf for row in families.rows):
        lines += _table(families)
    lines += _wrapped(describe_choice(families))
    if families.trials is not None:
        lines.append(families.trials.describe())
    for row in families.rows:
        if row.left_out:
            lines += _wrapped(f"{row.name} is left out: {row.left_out}")
    return lines


def describe_choice(families: FamilyComparison) -> str:
    """Returns how the active family was chosen if no trials did; empty otherwise."""
    if not families.untimed:
        return ""
    return f"{families.active} is active by prediction, as {families.untimed}"


def write_families(
    families: FamilyComparison, logdir: Path, function: str, log: logging.Logger
) -> None:
    """Writes the comparison as JSON; a failure is logged, as training goes on."""
    paths, message = documents(logdir, function, ("families",))
    if message:
        log.info("%s", message)
    write({paths["families"]: families.to_json()}, log)


def describe_prediction(row: FamilyRow) -> str:
    """Returns a predicted step for readers."""
    at_most = "at most " if row.is_bound and row.predicted_seconds is not None else ""
    return at_most + formatting.time(row.predicted_seconds)


def _table(families: FamilyComparison) -> Iterator[str]:
    """Yields a line per family: predicted and measured step, and the ratio to the active one."""
    width = max(len(row.label) for row in families.rows)
    yield f"  {'':<{width}}  {'predicted':>17}  {'in trials':>10}  ratio"
    active = next((row for row in families.rows if row.name == families.active), None)
    for row in families.rows:
        ratio = formatting.NONE
        if active is not None and row.is_comparable_to(active):
            ratio = f"{row.seconds / active.seconds:.2f}"
        measured = formatting.time(row.measured_seconds)
        line = f"  {row.label:<{width}}  {describe_prediction(row):>17}  {measured:>10}  {ratio:>5}"
        yield line + ("  active" if row is active else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, formatting.COLUMNS)
