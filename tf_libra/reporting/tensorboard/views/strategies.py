"""View of every strategy on a plan's profile."""

import dataclasses
from typing import Any

from tf_libra.planning import data_parallel as strategies
from tf_libra.planning.compare import IDEAL, PlanComparison, compare, every_strategy, ideal
from tf_libra.planning.strategy import ChosenThreads, FixedThreads
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.tensorboard.cache import Cache

# World sizes of the scale-out study, besides the present one.
SCALE_OUT = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Arguments of threads: each strategy is compared with all allowed values.
_THREADS = {
    field.name for kind in (FixedThreads, ChosenThreads) for field in dataclasses.fields(kind)
}
_ROWS: Cache[tuple[dict[str, Any], ...]] = Cache(2048)


def compared_strategies(record: PlanRecord) -> list[dict[str, Any]]:
    """Returns the rows of `strategies_view`; empty without a profile or a model.

    `is_ideal` marks the ideal without contention, which is no strategy.
    """
    if record.conclusion.profile is None or record.conclusion.cost_model is None:
        return []
    chooses = {strategy.name: strategy.chooses_threads for strategy in _all_strategies(record)}
    return [
        {"name": name, "chooses_threads": chosen, "is_ideal": False}
        for name, chosen in chooses.items()
    ] + [{"name": IDEAL, "chooses_threads": False, "is_ideal": True}]


def scale_out(record: PlanRecord) -> list[int]:
    """Returns the world sizes of `strategies_view` besides the record's."""
    if not compared_strategies(record):
        return []
    return [workers for workers in SCALE_OUT if workers >= record.plan.num_workers]


def strategies_view(
    record: PlanRecord, num_workers: int | None = None, name: str | None = None
) -> dict[str, Any]:
    """Returns the predicted backward time of every strategy on the record's profile.

    Strategies with a fixed thread count appear with each allowed count.

    Args:
      record: source of the profile and the model.
      num_workers: another world size than the record's, out of `SCALE_OUT`.
      name: a single strategy; None: all, which takes seconds for thousands of tensors.

    Raises:
      ValueError: no such strategy or world size.
    """
    if num_workers is not None and num_workers not in SCALE_OUT:
        allowed = ", ".join(map(str, SCALE_OUT))
        raise ValueError(f"workers must be one of {allowed}, got {num_workers}")
    workers = record.plan.num_workers if num_workers is None else num_workers
    names = [row["name"] for row in compared_strategies(record)]
    if name is not None and names and name not in names:
        raise ValueError(f"strategy must be one of {', '.join(names)}, got {name!r:.80}")
    chosen = [strategy for strategy in names if name in (None, strategy)]
    rows = [dict(row) for strategy in chosen for row in _rows(record, workers, strategy)]
    return {"num_workers": workers, "rows": rows}


def _rows(record: PlanRecord, num_workers: int, name: str) -> tuple[dict[str, Any], ...]:
    """Returns the rows of one strategy, one per thread count."""

    def plan() -> tuple[dict[str, Any], ...]:
        profile, cost = record.conclusion.whole_profile, record.conclusion.cost_model
        assert profile is not None and cost is not None
        model = cost.with_workers(num_workers)
        if name == IDEAL:
            bound = ideal(profile, model, min(record.threads))
            return (_row(bound.name, None, bound) | {"fingerprint": None, "is_ideal": True},)
        named = {str(i): s for i, s in enumerate(_all_strategies(record)) if s.name == name}
        return tuple(
            _row(
                strategy.name,
                None if strategy.chooses_threads else strategy.allowed_threads[0],
                compared,
            )
            for strategy, compared in zip(
                named.values(), compare(profile, model, named), strict=True
            )
        )

    return _ROWS.get((record, num_workers, name), plan)


def strategy_like(
    record: PlanRecord, name: str, num_threads: int | None = None
) -> strategies.Strategy:
    """Returns the strategy of a row of `strategies_view`.

    Raises:
      ValueError: no such strategy, or no row with this number of threads.
    """
    named = [strategy for strategy in _all_strategies(record) if strategy.name == name]
    for strategy in named:
        if num_threads is None or strategy.allowed_threads == (num_threads,):
            return strategy
    if not named:
        raise ValueError(f"strategy must be one of {', '.join(strategies.BY_NAME)}, got {name!r}")
    raise ValueError(f"threads must be one of {', '.join(map(str, record.threads))}")


def _all_strategies(record: PlanRecord) -> list[strategies.Strategy]:
    """Returns the user's strategy, and every other with the arguments that it has."""
    shared = {
        field.name: getattr(record.strategy, field.name)
        for field in dataclasses.fields(record.strategy)
        if field.name not in _THREADS
    }
    chosen: list[strategies.Strategy] = []
    for other in every_strategy(shared).values():
        strategy = record.strategy if other.name == record.strategy.name else other
        if strategy.chooses_threads:
            chosen.append(strategy.with_threads(record.threads))
        else:
            chosen += [strategy.with_threads((r,)) for r in record.threads]
    return chosen


def _row(name: str, num_threads: int | None, compared: PlanComparison) -> dict[str, Any]:
    plan, timeline = compared.plan, compared.timeline
    return {
        "strategy": name,
        "is_ideal": False,
        "num_threads": num_threads,
        "threads": [] if plan is None else sorted({group.num_threads for group in plan.groups}),
        "groups": None if plan is None else len(plan.groups),
        "backward_seconds": None
        if timeline is None
        else timeline.backward_seconds + timeline.forward_delay_seconds,
        "fingerprint": None if plan is None else plan.fingerprint,
    }
