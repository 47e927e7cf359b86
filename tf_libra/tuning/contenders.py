"""Which plans are worth a race."""

from collections.abc import Iterator

from tf_libra import strategies
from tf_libra.model.plan import Plan
from tf_libra.planning import make_plan
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.runnable import most_lanes, runnable

MAX_CONTENDERS = 4
# LIBRA's plans of so many groups at most, besides as many as the user's strategy allows.
_GROUPS = (2, 5)


def contenders(
    conclusion: Conclusion, strategy: strategies.Strategy, runs_streams: bool
) -> list[tuple[Plan, float | None]]:
    """The concluded plan and the best of other planners' by prediction, with predicted steps.

    One all-reduce of everything is always among them: what is no better than that is not worth
    its trouble, and of that the model cannot say much wrong.

    Args:
        conclusion: has a profile and a cost model.
        strategy: what the user has asked for, whose threads the others may use, too.
        runs_streams: whether the engine runs all-reduces of several streams at once.
    """
    profile, model = conclusion.profile, conclusion.cost_model
    assert profile is not None and model is not None
    num_lanes = most_lanes(strategy, runs_streams)
    found: dict[str, Plan] = {}
    for one in _others(strategy):
        try:
            plan = runnable(make_plan(profile, model, one), profile, model, num_lanes)
        except ValueError:  # a planner that the model leaves no plan is none to race
            continue
        found.setdefault(plan.fingerprint, plan)
    found.pop(conclusion.plan.fingerprint, None)
    proposed = sorted(found.values(), key=lambda plan: plan.predicted_seconds or 0.0)
    simplest = [plan for plan in proposed if len(plan.groups) == 1][:1]
    others = [plan for plan in proposed if plan not in simplest]
    chosen = [conclusion.plan, *others[: MAX_CONTENDERS - 1 - len(simplest)], *simplest]
    return [(plan, conclusion.predicted_step(plan)) for plan in chosen]


def _others(strategy: strategies.Strategy) -> Iterator[strategies.Strategy]:
    threads = strategy.allowed_threads
    fewest = min(threads)
    yield strategies.SynEasgd(num_threads=fewest)
    yield strategies.MgWfbp(num_threads=fewest)
    yield strategies.Wfbp(num_threads=fewest)
    yield strategies.AscWfbp(num_threads=fewest)
    yield strategies.LibraM(threads=threads)
    for max_groups in _GROUPS:
        yield strategies.Libra(threads=threads, max_groups=max_groups)
    yield strategies.Libra(threads=(fewest,))
    if max(threads) > fewest:
        yield strategies.Libra(threads=(max(threads),))
