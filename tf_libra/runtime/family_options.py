"""Families of strategies that options allow in trials, and errors as reasons against them."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_libra.runtime.strategy_kinds import KINDS, StrategyKind

if TYPE_CHECKING:
    from tf_libra.runtime.training_step import TrainingFunction

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_NODES = re.compile(r"\[\[\{\{node .*|\[Op:.*")


def describe_error(error: Exception) -> str:
    """Returns what an error says in one line."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return kind + last_line(str(error))


def first_failure(errors: Sequence[str]) -> str:
    """Returns the first error of ranks, with the rank unless all have failed; empty without one.

    Args:
        errors: error of each rank in one line; empty for a rank without.
    """
    failed = [rank for rank, error in enumerate(errors) if error]
    if not failed:
        return ""
    where = "" if len(failed) == len(errors) else f" (on rank {failed[0]})"
    return f"{errors[failed[0]]}{where}"


def last_line(reason: str) -> str:
    """Returns the last line of a reason, which says what is wrong.

    AutoGraph quotes code before it. Keras lists arguments after it, and TensorFlow nodes.
    """
    text, *_ = _COLORS.sub("", reason).split("Arguments received by ")
    lines = [_NODES.sub("", line).strip() for line in text.splitlines()]
    *_, last = ["", *filter(None, lines)]
    return last.removeprefix("ValueError: ")


def available_families(families: Sequence[str]) -> Sequence[str]:
    """Returns names of strategies that may join trials; none if their system is not installed.

    Raises:
        ValueError: a name is unknown, or of a strategy that may not.
    """
    kinds = [kind for kind in KINDS.values() if kind.joins_trials]
    allowed = [name for kind in kinds for name in kind.strategies.by_name]
    for name in families if kinds else ():
        if name not in allowed:
            raise ValueError(f"families must be of {', '.join(allowed)}, got {name!r}")
    return families if kinds else ()


def job_against(first: "TrainingFunction") -> str:
    """Returns why only data parallelism can train in the job; empty if others may, too."""
    job = first.rendezvous.job
    if job is not None and job.by_strategy:
        return f"{job.name} has every worker compute the whole step"
    return first.rendezvous.options.family_conflict


def rows_against(first: "TrainingFunction", kind: StrategyKind, use_of_rows: str | None) -> str:
    """Returns why strategies of another kind cannot train sparse gradients; empty if they may.

    Args:
        first: the step under data parallelism.
        kind: kind of the strategies.
        use_of_rows: see `CandidateStep`.
    """
    if first.gathers_rows and first.rendezvous.options.sparse_as_dense == "rows":
        return 'sparse_as_dense="rows" adds rows of one id, which no other strategy does'
    if first.gathers_rows and not kind.trains_alone and use_of_rows != "":
        how = f", as in {use_of_rows!r}" if use_of_rows else ""
        return (
            f"gradients are sparse, and an optimizer may apply rows otherwise than their sum{how};"
            " sparse_as_dense=True makes them dense under every strategy"
        )
    return ""
