"""`auto`: the plans of every strategy, and the best setting that a search finds, race."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast

from tf_libra.autotune.candidates import outlined, step_seconds
from tf_libra.autotune.engine_constraints import most_lanes, runnable
from tf_libra.autotune.fit_and_plan import is_trusted
from tf_libra.autotune.model_tuner import concluded, raced
from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.search.driver import search
from tf_libra.autotune.search.space import Searched
from tf_libra.autotune.search_tuner import SearchTuner, finalists
from tf_libra.autotune.stream_contention import contention_of, informed, with_contention
from tf_libra.autotune.tuner_registry import Tuner, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.internal.registry import lacking
from tf_libra.planning import make_plan
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan

# Of the steps that are left when a model is fitted; the race has the rest.
_SEARCH_SHARE = 0.4
_FINALISTS = 3


class BorrowedSettings(Strategy, Protocol):
    """A strategy that plans as others do."""

    def others(self) -> Mapping[str, Strategy]:
        """Returns the other strategies, by name."""
        ...


@register
@dataclass(frozen=True)
class PortfolioTuner:
    """Tuner that races the plans and the searched settings of all other strategies."""

    name: ClassVar[str] = "all"
    takes: ClassVar[type[Any]] = BorrowedSettings

    def asks_for_a_start(self, strategy: Strategy) -> bool:
        """Its plan races, and searches begin with its settings."""
        return True

    def tune(self, task: TuningProblem) -> Tuner:
        """Measures, samples, fits, plans by all strategies, searches, races."""
        return _tune(task, cast(BorrowedSettings, task.strategy))


def _tune(task: TuningProblem, strategy: BorrowedSettings) -> Tuner:
    num_workers, runs_streams = task.num_workers, task.runs_streams
    conclusion = yield from concluded(task)
    if conclusion.profile is None or conclusion.cost_model is None:
        return conclusion
    notes = list(conclusion.notes)
    plans = _plans(conclusion, strategy, runs_streams)
    steps = round(_SEARCH_SHARE * task.end.steps_left)
    start = task.start(conclusion.bytes_per_second)
    tried: list[Plan] = []
    gamma = contention_of(strategy, conclusion.contention)
    searches = []
    searched = _searched(strategy)
    for one in searched:
        found = yield from search(
            conclusion.profile,
            one,
            num_workers,
            task.end,
            steps // len(searched),
            notes,
            runs_streams,
            () if start is None else start.settings,
        )
        if found.best is None:
            continue
        # In place of what the model thinks the best setting.
        plans = [plan for plan in plans if plan.strategy != one.name]
        notes.append(found.describe())
        best = finalists(found, conclusion.profile, one, task, _FINALISTS)
        plans += [with_contention(plan, gamma) for plan in best]
        tried += best
        searches.append(found)
    shortest = min(searches, key=lambda one: min(one.seconds.values()), default=None)
    conclusion = replace(conclusion, notes=tuple(notes), search=shortest)
    kept = outlined(conclusion, strategy, runs_streams, start)
    if task.in_force is not None:  # planned with the gamma of then, by the model of then
        plans.append(conclusion.renewed(with_contention(task.in_force, gamma)))
    plans += [] if kept is None else [kept]
    proposed = {plan.fingerprint: plan for plan in reversed(plans)}
    trusted = is_trusted(conclusion.held_out_error, task.max_model_error)

    def place(plan: Plan) -> tuple[bool, float, str]:
        """Returns a sort key: the predicted step; an untrusted model puts the safe plan first."""
        is_safe = plan.fingerprint == conclusion.plan.fingerprint
        return not (trusted or is_safe), step_seconds(conclusion, plan), plan.fingerprint

    ordered = sorted(proposed.values(), key=place)
    timed = [(plan, conclusion.predicted_step(plan)) for plan in ordered]
    after = yield from raced(conclusion, timed, task, tried)
    if after.race is None and len(timed) > 1 and trusted:
        note = "the budget ended before any two plans were compared: the model has chosen"
        return replace(after, notes=(*after.notes, note))
    return after


def _searched(strategy: BorrowedSettings) -> list[Searched]:
    """Returns the other strategies that are tuned by a search when the user selects them alone."""
    return [
        cast(Searched, one)
        for one in strategy.others().values()
        if one.tuned_by == SearchTuner.name and not lacking(type(one), Searched)
    ]


def _plans(conclusion: TuningResult, strategy: BorrowedSettings, runs_streams: bool) -> list[Plan]:
    """Every strategy's plan, as far as the model leaves it one."""
    profile, model = conclusion.profile, conclusion.cost_model
    assert profile is not None and model is not None
    num_lanes = most_lanes(strategy, runs_streams)
    plans = []
    for one in informed(strategy, conclusion.contention).others().values():
        try:
            plans.append(runnable(make_plan(profile, model, one), profile, model, num_lanes))
        except ValueError:  # a planner that the model leaves no plan is none to race
            continue
    return plans or [conclusion.plan]
