"""`auto`: the plans of every strategy, and the best setting that a search finds, race."""

from dataclasses import replace

from tf_libra.model.plan import Plan
from tf_libra.planning import make_plan
from tf_libra.planning.data_parallel.aiacc import Aiacc
from tf_libra.planning.data_parallel.auto import Auto
from tf_libra.tuning.algorithm import Tuner, concluded, raced
from tf_libra.tuning.at_once import contention_of, informed, with_contention
from tf_libra.tuning.by_search import finalists
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.contenders import outlined, step_seconds
from tf_libra.tuning.fit_and_plan import is_trusted
from tf_libra.tuning.runnable import most_lanes, runnable
from tf_libra.tuning.search.searching import search
from tf_libra.tuning.task import Task

# Of the steps that are left when a model is fitted; the race has the rest.
_SEARCH_SHARE = 0.4
_FINALISTS = 3


def tune_by_all(task: Task) -> Tuner:
    """Measures, samples, fits, plans by all strategies, searches, races."""
    strategy, num_workers, runs_streams = task.strategy, task.num_workers, task.runs_streams
    assert isinstance(strategy, Auto)
    conclusion = yield from concluded(task)
    if conclusion.profile is None or conclusion.cost_model is None:
        return conclusion
    notes = list(conclusion.notes)
    plans = _plans(conclusion, strategy, runs_streams)
    steps = round(_SEARCH_SHARE * task.end.steps_left)
    start = task.start(conclusion.bytes_per_second)
    aiacc = strategy.aiacc()
    assert isinstance(aiacc, Aiacc)
    found = yield from search(
        conclusion.profile,
        aiacc,
        num_workers,
        task.end,
        steps,
        notes,
        runs_streams,
        () if start is None else start.settings,
    )
    tried: list[Plan] = []
    gamma = contention_of(strategy, conclusion.contention)
    if found.best is not None:
        # In place of what the model thinks the best setting.
        plans = [plan for plan in plans if plan.strategy != Aiacc.name]
        notes.append(found.describe())
        tried = finalists(found, conclusion.profile, task, _FINALISTS)
        plans += [with_contention(plan, gamma) for plan in tried]
    conclusion = replace(conclusion, notes=tuple(notes), search=found if found.trials else None)
    kept = outlined(conclusion, strategy, runs_streams, start)
    if task.in_force is not None:  # planned with the gamma of then, by the model of then
        plans.append(conclusion.renewed(with_contention(task.in_force, gamma)))
    plans += [] if kept is None else [kept]
    proposed = {plan.fingerprint: plan for plan in reversed(plans)}
    trusted = is_trusted(conclusion.held_out_error, task.max_model_error)

    def place(plan: Plan) -> tuple[bool, float, str]:
        """By what is predicted; where that is not trusted, what is safe comes first."""
        is_safe = plan.fingerprint == conclusion.plan.fingerprint
        return not (trusted or is_safe), step_seconds(conclusion, plan), plan.fingerprint

    ordered = sorted(proposed.values(), key=place)
    timed = [(plan, conclusion.predicted_step(plan)) for plan in ordered]
    after = yield from raced(conclusion, timed, task, tried)
    if after.race is None and len(timed) > 1 and trusted:
        note = "the budget ended before any two plans were compared: the model has chosen"
        return replace(after, notes=(*after.notes, note))
    return after


def _plans(conclusion: Conclusion, strategy: Auto, runs_streams: bool) -> list[Plan]:
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
