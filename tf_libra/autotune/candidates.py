"""Choice of the plans that race: promising plans that differ from each other.

A race hardly separates plans that are much alike, and a model that is wrong is wrong about all of
them. So each contender differs from those chosen before.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tf_libra import strategies
from tf_libra.autotune.engine_constraints import most_lanes, runnable
from tf_libra.autotune.stream_contention import contention_of, informed, with_contention
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.plan import Plan

MAX_CONTENDERS = 4
# LIBRA's plans of so many groups at most, besides as many as the user's strategy allows.
_GROUPS = (2, 5)
# Plans are unlike where groups, their sizes and their threads differ by a factor of 2 in all.
_UNLIKE = 1.0


def contenders(
    conclusion: TuningResult,
    strategy: strategies.Strategy,
    runs_streams: bool,
    in_force: Plan | None = None,
    start: WarmStart | None = None,
) -> list[tuple[Plan, float | None]]:
    """The concluded plan and the best of other planners' by prediction, with predicted steps.

    One all-reduce of everything is always among them: what is no better than that is not worth
    its trouble, and of that the model cannot say much wrong.

    Args:
        conclusion: has a profile and a cost model.
        strategy: the user's strategy, whose threads the other strategies may use, too.
        runs_streams: whether the engine runs all-reduces of several streams concurrently.
        in_force: a plan that is among them in any case.
        start: what a job that is alike has found, which is, too; None where nothing is known.
    """
    profile, model = conclusion.profile, conclusion.cost_model
    assert profile is not None and model is not None
    num_lanes = most_lanes(strategy, runs_streams)
    found: dict[str, Plan] = {}
    gamma = contention_of(strategy, conclusion.contention)
    others = list(_others(strategy))
    if conclusion.plan.strategy != strategy.name:  # by a model that is not trusted
        others.insert(0, strategy)
    for one in others:
        try:
            planned = make_plan(profile, model, informed(one, gamma))
            plan = runnable(planned, profile, model, num_lanes)
        except ValueError:  # a planner that the model leaves no plan is none to race
            continue
        found.setdefault(plan.fingerprint, plan)
    if in_force is not None:
        # It was planned with the gamma of then, and predicted by the model of then.
        in_force = conclusion.renewed(with_contention(in_force, gamma))
        found[in_force.fingerprint] = in_force
    kept = outlined(conclusion, strategy, runs_streams, start)
    if kept is not None:
        kept = found.setdefault(kept.fingerprint, kept)
    found.pop(conclusion.plan.fingerprint, None)
    proposed = sorted(found.values(), key=partial(step_seconds, conclusion))
    simplest = [plan for plan in proposed if len(plan.groups) == 1][:1]
    anyway = [plan for plan in proposed if plan is in_force or plan is kept or plan in simplest]
    chosen = _unlike([conclusion.plan, *anyway], proposed)
    # The most promising first: what the race goes by until it has measured something.
    chosen = [conclusion.plan, *(plan for plan in proposed if plan in chosen)]
    return [(plan, conclusion.predicted_step(plan)) for plan in chosen]


def step_seconds(conclusion: TuningResult, plan: Plan) -> float:
    """Returns the predicted step with updates, which planners minimize; infinite if unknown."""
    timeline = conclusion.predicted(plan)
    return math.inf if timeline is None else timeline.step_seconds


def outlined(
    conclusion: TuningResult,
    strategy: strategies.Strategy,
    runs_streams: bool,
    start: WarmStart | None,
) -> Plan | None:
    """The plan of a job that is alike, made of these tensors; None where it cannot be."""
    profile, model = conclusion.profile, conclusion.cost_model
    if start is None or profile is None or model is None:
        return None
    groups = start.outline.groups([tensor.num_bytes for tensor in profile.tensors])
    most = max(strategy.allowed_threads)
    groups = tuple(replace(g, num_threads=min(g.num_threads, most)) for g in groups)
    note = f"outlined by what a job that is alike has found under {start.strategy}"
    plan = Plan.for_profile(profile, groups, model.num_workers, strategy.name, notes=(note,))
    plan = with_contention(plan, contention_of(strategy, conclusion.contention))
    try:
        plan = runnable(plan, profile, model, most_lanes(strategy, runs_streams))
        return replace(plan, predicted_seconds=simulate(profile, plan, model).backward_seconds)
    except ValueError:  # threads that the model leaves no resources
        return None


def _unlike(taken: list[Plan], proposed: Sequence[Plan]) -> list[Plan]:
    """Returns the taken plans, then the most promising proposed ones that differ from those."""
    for least in (_UNLIKE, 0.0):
        for plan in proposed:
            nearest = min(distance(plan, one) for one in taken)
            if len(taken) < MAX_CONTENDERS and plan not in taken and nearest >= least:
                taken = [*taken, plan]
    return taken


def distance(one: Plan, other: Plan) -> float:
    """Returns the distance of two plans of the same tensors: 1 for each factor of 2 in one respect.

    The distance is the sum of the differences between the binary logarithms of the numbers of
    groups and, in the mean over all bytes, of the sizes and the threads of a byte's groups.
    """
    ends = [np.cumsum(plan.group_bytes) for plan in (one, other)]
    every_end = np.unique(np.concatenate(ends))
    lengths = np.diff(every_end, prepend=0)
    apart = abs(np.log2(len(one.groups) / len(other.groups)))
    if every_end[-1] > 0:
        # Between two neighbouring ends all bytes are in one group of each plan.
        of_one, of_other = (
            _logarithms(plan)[np.searchsorted(of_plan, every_end)]
            for plan, of_plan in zip((one, other), ends, strict=True)
        )
        apart += np.average(np.abs(of_one - of_other).sum(axis=1), weights=lengths)
    return float(apart)


def _logarithms(plan: Plan) -> NDArray[np.float64]:
    """Returns the binary logarithms of bytes and threads, [groups, 2]."""
    sizes = np.maximum(plan.group_bytes, 1)
    return np.log2(np.stack([sizes, [group.num_threads for group in plan.groups]], axis=1))


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
