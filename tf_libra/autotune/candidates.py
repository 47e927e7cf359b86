"""Candidate selection: promising plans that differ from each other.

A race hardly separates similar plans, and a wrong model is wrong about all of them. So each
candidate differs from those selected before.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.concurrent_all_reduces import (
    adapt_to_engine,
    max_lanes,
    resolve_contention,
    with_contention,
    with_measured_contention,
)
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.plan import Plan

MAX_CANDIDATES = 4
# Limits on LIBRA's groups, in addition to that of the user's strategy.
_MAX_GROUPS = (2, 5)
# Least `distance` between candidates: a factor of 2 in groups, sizes and threads together.
_MIN_DISTANCE = 1.0


def select_candidates(
    result: TuningResult,
    strategy: strategies.Strategy,
    runs_streams: bool,
    active_plan: Plan | None = None,
    warm_start: WarmStart | None = None,
    wire_dtypes: Sequence[str | None] = (None,),
    tries_gathers: bool = False,
) -> list[tuple[Plan, float | None]]:
    """Selects the result's plan and the best plans of other planners, with predicted steps.

    One all-reduce of everything is always a candidate: it is the simplest plan, and the model
    predicts it best. With several wire dtypes, so is the strategy's plan for each of them, and with
    `tries_gathers` its plan with gathers.

    Args:
        result: result of tuning, with a profile and a cost model.
        strategy: user's strategy; other strategies may use its threads.
        runs_streams: True if the engine runs all-reduces of several streams concurrently.
        active_plan: plan that is always a candidate; None if there is none.
        warm_start: warm start whose plan is always a candidate; None if there is none.
        wire_dtypes: wire dtypes that plans may have.
        tries_gathers: whether plans may have gathers.
    """
    profile, model = result.profile, result.cost_model
    assert profile is not None and model is not None
    num_lanes = max_lanes(strategy, runs_streams)
    found: dict[str, Plan] = {}
    gamma = resolve_contention(strategy, result.contention)
    others = list(_other_strategies(strategy))
    # Or the model was not trusted with the user's strategy.
    if len(wire_dtypes) > 1 or result.plan.strategy != strategy.name:
        others.insert(0, strategy)
    variants: list[str] = []  # the first strategy's plan in each format, and its gathers
    for other, dtype in itertools.product(others, wire_dtypes):
        try:
            planned = make_plan(profile, model, with_measured_contention(other, gamma), dtype)
            plan = adapt_to_engine(planned, profile, model, num_lanes)
        except ValueError:  # the planner finds no plan under this model
            continue
        found.setdefault(plan.fingerprint, plan)
        if other is strategy and (tries_gathers or len(wire_dtypes) > 1):
            variants.append(plan.fingerprint)
    gathering = plan_with_gathers(result, strategy) if tries_gathers else None
    if gathering is not None:
        found[gathering.fingerprint] = gathering
        variants.append(gathering.fingerprint)
    if active_plan is not None:
        # Its gamma and prediction are those of an earlier model.
        active_plan = result.with_prediction(with_contention(active_plan, gamma))
        found[active_plan.fingerprint] = active_plan
    warm_plan = warm_start_plan(result, strategy, runs_streams, warm_start)
    if warm_plan is not None:
        warm_plan = found.setdefault(warm_plan.fingerprint, warm_plan)
    found.pop(result.plan.fingerprint, None)
    ranked = sorted(found.values(), key=partial(step_seconds, result))
    simplest = [plan for plan in ranked if plan.is_one_all_reduce][:1]
    required = [
        plan
        for plan in ranked
        if plan is active_plan
        or plan is warm_plan
        or plan in simplest
        or plan.fingerprint in variants
    ]
    selected = _add_diverse([result.plan, *required], ranked)
    # The most promising first: a race without a complete round keeps this order.
    selected = [result.plan, *(plan for plan in ranked if plan in selected)]
    return [(plan, result.predicted_step(plan)) for plan in selected]


def plan_with_gathers(result: TuningResult, strategy: strategies.Strategy) -> Plan | None:
    """Returns the strategy's plan of reduce-scatters and gathers; None if it finds none.

    Args:
        result: result of tuning, with a profile and a cost model.
        strategy: strategy that plans reduce-scatters; gathers may use its threads.
    """
    profile, model = result.whole_profile, result.cost_model
    assert profile is not None and model is not None
    try:
        plan = make_plan(profile, model, strategy, gathers=True)
    except ValueError:  # the planner finds no plan under this model
        return None
    timeline = result.predicted(plan)  # it knows of updates that stay whole
    return plan if timeline is None else replace(plan, predicted_seconds=timeline.backward_seconds)


def gathered_by_groups(plan: Plan) -> Plan:
    """Returns the plan with its groups as gathers, as it gathers weights without planned gathers.

    Gathers are of whole tensors and sequential, so other plans are returned as they are.
    """
    if plan.gathers or plan.cuts_tensors or plan.num_streams > 1:
        return plan
    return replace(plan, gathers=tuple(replace(g, stream=0) for g in reversed(plan.groups)))


def step_seconds(result: TuningResult, plan: Plan) -> float:
    """Returns the predicted step with updates, which planners minimize; infinite if unknown."""
    timeline = result.predicted(plan)
    return math.inf if timeline is None else timeline.step_seconds


def warm_start_plan(
    result: TuningResult,
    strategy: strategies.Strategy,
    runs_streams: bool,
    warm_start: WarmStart | None,
) -> Plan | None:
    """Returns the plan of a similar job, applied to these tensors; None if it does not apply."""
    profile, model = result.profile, result.cost_model
    if warm_start is None or profile is None or model is None:
        return None
    groups = warm_start.outline.groups([tensor.num_bytes for tensor in profile.tensors])
    most = max(strategy.allowed_threads)
    groups = tuple(replace(g, num_threads=min(g.num_threads, most)) for g in groups)
    note = f"outline of a similar job's plan ({warm_start.strategy})"
    plan = Plan.for_profile(profile, groups, model.num_workers, strategy.name, notes=(note,))
    plan = with_contention(plan, resolve_contention(strategy, result.contention))
    try:
        plan = adapt_to_engine(plan, profile, model, max_lanes(strategy, runs_streams))
        return replace(plan, predicted_seconds=simulate(profile, plan, model).backward_seconds)
    except ValueError:  # the model leaves no computation next to these threads
        return None


def _add_diverse(selected: list[Plan], ranked: Sequence[Plan]) -> list[Plan]:
    """Adds the most promising plans that differ from the selected ones, then any others."""
    for least in (_MIN_DISTANCE, 0.0):
        for plan in ranked:
            nearest = min(distance(plan, other) for other in selected)
            if len(selected) < MAX_CANDIDATES and plan not in selected and nearest >= least:
                selected = [*selected, plan]
    return selected


def distance(plan: Plan, other: Plan) -> float:
    """Returns the distance between two plans of the same tensors, in factors of 2.

    The distance is a sum of differences of binary logarithms: of the number of groups, and of the
    bytes and threads of each byte's group (averaged over all bytes).
    """
    ends = [np.cumsum(each.group_bytes) for each in (plan, other)]
    every_end = np.unique(np.concatenate(ends))
    lengths = np.diff(every_end, prepend=0)
    total = abs(np.log2(len(plan.groups) / len(other.groups)))
    if every_end[-1] > 0:
        # The bytes between two adjacent ends belong to one group of each plan.
        sizes, other_sizes = (
            _log_sizes(each)[np.searchsorted(group_ends, every_end)]
            for each, group_ends in zip((plan, other), ends, strict=True)
        )
        total += np.average(np.abs(sizes - other_sizes).sum(axis=1), weights=lengths)
    return float(total)


def _log_sizes(plan: Plan) -> NDArray[np.float64]:
    """Returns the binary logarithms of bytes that travel and threads, [groups, 2]."""
    sizes = np.maximum(plan.wire_bytes, 1)
    return np.log2(np.stack([sizes, [group.num_threads for group in plan.groups]], axis=1))


def _other_strategies(strategy: strategies.Strategy) -> Iterator[strategies.Strategy]:
    threads = strategy.allowed_threads
    fewest = min(threads)
    yield strategies.SynEasgd(num_threads=fewest)
    yield strategies.MgWfbp(num_threads=fewest)
    yield strategies.Wfbp(num_threads=fewest)
    yield strategies.AscWfbp(num_threads=fewest)
    yield strategies.LibraM(threads=threads)
    for max_groups in _MAX_GROUPS:
        yield strategies.Libra(threads=threads, max_groups=max_groups)
    yield strategies.Libra(threads=(fewest,))
    if max(threads) > fewest:
        yield strategies.Libra(threads=(max(threads),))
