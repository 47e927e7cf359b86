"""What follows from a run's records and is shown: JSON values, for the plugin and for reports.

Pure functions. Seconds and bytes; tensors and groups in backward order. What cannot be said,
because nothing was measured, is None.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra import strategies
from tf_libra.cost_model import CostModel
from tf_libra.cost_model.fitting import computation_errors, prediction_errors
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning import make_plan
from tf_libra.planning.compare import IDEAL, Compared, compare, every_strategy, ideal
from tf_libra.planning.explain import GroupExplanation, explain_group, explain_summary
from tf_libra.planning.losses import bottleneck, losses
from tf_libra.records.background import BackgroundRecord
from tf_libra.records.burst import BurstRecord
from tf_libra.records.pipeline import PipelineRecord
from tf_libra.records.plan import PlanRecord
from tf_libra.records.spread import Spread
from tf_libra.records.timeline import TimelineRecord
from tf_libra.simulation import Timeline, burst_gantt, pipeline_gantt, simulate
from tf_libra.simulation.pipeline import stage_seconds
from tf_libra.tensorboard.cache import Cache
from tf_libra.tuning.comparison import against_one_all_reduce, why_another
from tf_libra.tuning.race import Race
from tf_libra.tuning.search.result import Search

# World sizes of the scale-out study, beside the present one.
SCALE_OUT = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Points of a fitted curve.
_CURVE_POINTS = 60


def plan_view(record: PlanRecord, hosts: Sequence[str] = ()) -> dict[str, Any]:
    """The groups of a plan, with what is predicted of them, and the names of the ranks' hosts.

    `bottleneck` is the group by which most of backward's time is lost, to contention and to waiting
    for it alone.
    """
    plan, timeline = record.plan, predicted(record)
    view: dict[str, Any] = {
        "function": record.function,
        "step": record.step,
        "origin": record.origin,
        "strategy": plan.strategy,
        "asked": record.strategy.name,
        "fingerprint": plan.fingerprint,
        "num_workers": plan.num_workers,
        "num_tensors": len(plan.tensor_names),
        "num_bytes": sum(plan.num_bytes),
        "threads": list(record.threads),
        "after_backward": plan.after_backward,
        "predicted_seconds": plan.predicted_seconds,
        "notes": list(dict.fromkeys((*plan.notes, *record.conclusion.notes))),
        "versions": list(record.versions),
        "hosts": list(hosts),
        "strategies": strategy_names(record),
        "tensor_names": list(plan.tensor_names),
        "race": race_view(record.conclusion.race),
        "search": search_view(record.conclusion.search),
        "comparison": comparison_view(record.conclusion.race),
        "another": why_another(
            record.strategy.name, plan.strategy, record.conclusion.race, record.conclusion.notes
        )
        if record.conclusion.profile is not None
        else None,
        "summary": None,
        "compute_seconds": None,
        "bottleneck": None,
        "groups": [
            {
                "group": index,
                "start": group.start,
                "stop": group.stop,
                "start_byte": group.start_byte,
                "stop_byte": group.stop_byte,
                "num_threads": group.num_threads,
                "stream": group.stream,
                "num_bytes": plan.group_bytes[index],
                # As the pass names it; see passes/fusions.cc.
                "node": f"tf_libra/{plan.short_id}/group_{index}",
            }
            for index, group in enumerate(plan.groups)
        ],
    }
    if record.conclusion.profile is not None:
        view["compute_seconds"] = float(record.conclusion.profile.compute_after[0])
    if timeline is None:
        return view
    assert record.conclusion.profile is not None and record.conclusion.cost_model is not None
    view["summary"] = explain_summary(record.conclusion.profile, plan, record.conclusion.cost_model)
    view["predicted_seconds"] = timeline.backward_seconds
    costs = _costs(record.plan, timeline, record.conclusion.cost_model)
    for row, cost in zip(view["groups"], costs, strict=True):
        row.update(cost)
    view["totals"] = {
        "backward_seconds": timeline.backward_seconds,
        "step_seconds": timeline.step_seconds,
        "computation_end_seconds": timeline.computation_end_seconds,
        "slowed_seconds": timeline.computation_end_seconds - view["compute_seconds"],
        "residual_communication_seconds": sum(
            stage.residual_communication_seconds for stage in timeline.stages
        ),
    }
    view["bottleneck"] = bottleneck(losses(plan, timeline, record.conclusion.cost_model))
    return view


def pipeline_view(record: PipelineRecord) -> dict[str, Any]:
    """A pipeline: who computes what, and what every rank does when, predicted and measured.

    Of each rank's bubbles the longest is said.
    """
    plan, layers, cluster = record.plan, record.layers, record.cluster
    computes = [stage_seconds(layers, stage) for stage in plan.stages]
    return {
        "function": record.function,
        "step": record.step,
        "strategy": plan.strategy,
        "num_microbatches": plan.num_microbatches,
        "bottleneck": pipeline_gantt.bottleneck(layers, plan, cluster),
        "notes": list(plan.notes),
        "stages": [
            {
                "layers": pipeline_gantt.layers_of(plan, number),
                "ranks": list(stage.devices),
                "forward_seconds": computes[number][0],
                "backward_seconds": computes[number][1],
                "parameter_bytes": float(layers.parameter_bytes[stage.start : stage.stop].sum()),
            }
            for number, stage in enumerate(plan.stages)
        ],
        "charts": [
            {
                "title": picture.title,
                "seconds": picture.seconds,
                "bars": [dataclasses.asdict(bar) for bar in picture.bars],
                "ranks": [
                    {
                        "rank": one.device,
                        "idle_share": one.share,
                        "longest": None
                        if one.longest is None
                        else {"seconds": one.longest.seconds, "why": one.longest.why},
                    }
                    for one in pipeline_gantt.idle(plan, picture)
                ],
            }
            for picture in pipeline_gantt.pictures(
                layers, plan, cluster, (record.bars, record.seconds)
            )
        ],
    }


def burst_view(record: BurstRecord) -> dict[str, Any]:
    """A burst plan: the ranks under each layer, and what every rank does when, measured first.

    `measured` of a layer is its computation on each of `device_counts` ranks; None of a plan that
    was given. An amplification that is infinite is None.
    """
    plan, profile = record.plan, record.profile
    return {
        "function": record.function,
        "step": record.step,
        "strategy": plan.strategy,
        "max_amplification": plan.max_amplification,
        "predicted_seconds": plan.iteration_seconds,
        "device_seconds": plan.device_seconds,
        "measured_seconds": record.seconds,
        "device_counts": list(plan.device_counts),
        "notes": list(plan.notes),
        "layers": [
            dataclasses.asdict(layer)
            | {
                "amplification": _finite(layer.amplification),
                "measured": None if profile is None else profile.compute_seconds[index].tolist(),
            }
            for index, layer in enumerate(burst_gantt.layers_of(plan))
        ],
        "charts": [
            {
                "title": picture.title,
                "seconds": picture.seconds,
                "bars": [dataclasses.asdict(bar) for bar in picture.bars],
                "idle_seconds": list(picture.idle_seconds),
            }
            for picture in burst_gantt.pictures(plan, (record.bars, record.seconds))
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def background_view(record: BackgroundRecord) -> dict[str, Any]:
    """What a background job has got; its own steps per second are None where it counts none."""
    rate = None
    if record.num_steps is not None and record.seconds > 0:
        rate = record.num_steps / record.seconds
    return {
        "function": record.function,
        "rank": record.rank,
        "step": record.step,
        "command": record.command,
        "max_slowdown": record.max_slowdown,
        "slowdown": record.slowdown,
        "share_of_steps": record.share_of_steps,
        "num_pauses": record.num_pauses,
        "num_steps": record.num_steps,
        "steps_per_second": rate,
    }


def race_view(race: Race | None) -> list[dict[str, Any]] | None:
    """The plans that were run in turns, the one in force first; None where none were.

    `ratio` is a contender's step to the winner's, by steps that stood beside each other; `is_noise`
    says that this tells nothing. Both are of no meaning for the winner.
    """
    if race is None:
        return None
    rows = []
    for one in race.contenders:
        lead = race.lead(one)
        rows.append(
            {
                "strategy": one.plan.strategy,
                "fingerprint": one.plan.fingerprint,
                "num_groups": len(one.plan.groups),
                "threads": sorted({group.num_threads for group in one.plan.groups}),
                "num_rounds": len(one.seconds),
                "step": dataclasses.asdict(Spread.of(one.seconds)) if one.seconds else None,
                "predicted_seconds": one.predicted_seconds,
                "ratio": None if lead is None else lead[0],
                "is_noise": race.is_noise(one),
            }
        )
    return rows


def comparison_view(race: Race | None) -> dict[str, Any] | None:
    """The step of the plan in force against one all-reduce after backward; None if not compared."""
    compared = against_one_all_reduce(race)
    if compared is None:
        return None
    return {
        "low": compared.low,
        "ratio": compared.ratio,
        "high": compared.high,
        "is_noise": compared.is_noise,
        "num_rounds": compared.num_rounds,
        "text": compared.describe(),
    }


def search_view(search: Search | None) -> dict[str, Any] | None:
    """What was tried, by whom, and how it went; None where nothing was searched.

    `searchers` are in the order of their first use; `searcher` is "start" for what a search begins
    with.
    """
    if search is None:
        return None
    used: dict[str, list[bool]] = {}
    for use in search.history:
        used.setdefault(use.searcher, []).append(use.found_best)
    return {
        "best": None if search.best is None else dataclasses.asdict(search.best),
        "num_settings": len(search.seconds),
        "searchers": [
            {"name": name, "num_steps": len(found), "new_bests": sum(found)}
            for name, found in used.items()
        ],
        "trials": [
            {
                "searcher": trial.searcher,
                **dataclasses.asdict(trial.setting),
                "seconds": trial.seconds,
                "found_best": trial.found_best,
            }
            for trial in search.trials
        ],
    }


def _costs(plan: Plan, timeline: Timeline, cost: CostModel) -> list[dict[str, Any]]:
    """What each group costs: its span, and how much backward gets longer beside and after it."""
    rows = []
    found = losses(plan, timeline, cost)
    for loss, span, stage in zip(found, timeline.groups, timeline.stages[1:], strict=True):
        rows.append(
            {
                "ready_seconds": span.ready_seconds,
                "start_seconds": span.start_seconds,
                "end_seconds": span.end_seconds,
                "waited_seconds": span.start_seconds - span.ready_seconds,
                "overlap_seconds": stage.overlap_seconds,
                "residual_compute_seconds": stage.residual_compute_seconds,
                "residual_communication_seconds": stage.residual_communication_seconds,
                "slowed_seconds": loss.slowed_seconds,
                "lost_seconds": loss.seconds,
            }
        )
    return rows


def group_view(record: PlanRecord, index: int) -> dict[str, Any]:
    """One group: its tensors, and why it is as it is; `caveat` of reasons that are not trusted.

    Raises:
      ValueError: the plan has no such group.
    """
    plan = record.plan
    if not 0 <= index < len(plan.groups):
        raise ValueError(f"group must be from 0 to {len(plan.groups) - 1}, got {index}")
    group = plan.groups[index]
    profile = record.conclusion.profile
    seconds = None
    if profile is not None:
        order = {tensor.name: tensor.compute_seconds for tensor in profile.tensors}
        seconds = [order[name] for name in plan.tensor_names[group.start : group.stop]]
    view: dict[str, Any] = {
        "group": index,
        "start": group.start,
        "num_threads": group.num_threads,
        "names": list(plan.tensor_names[group.start : group.stop]),
        "num_bytes": [part.num_bytes for part in plan.parts(index)],
        "compute_seconds": seconds,
        "why": None,
        "caveat": record.conclusion.evidence.caveat,
    }
    if predicted(record) is not None:
        model, evidence = record.conclusion.cost_model, record.conclusion.evidence
        assert profile is not None and model is not None
        view["why"] = _why(explain_group(profile, plan, model, index, evidence))
    return view


def _why(explanation: GroupExplanation) -> dict[str, Any]:
    return {
        "starts": explanation.starts,
        "merged": explanation.merged,
        "threads": explanation.threads,
        "alternatives": [dataclasses.asdict(one) for one in explanation.alternatives],
    }


def predicted(record: PlanRecord) -> Timeline | None:
    """What the record's model says of its plan; None where it says nothing."""
    return record.conclusion.predicted(record.plan)


def predicted_timeline(record: PlanRecord, strategy: strategies.Strategy | None = None) -> Any:
    """The predicted timeline of the record's plan, or of what another strategy would have made.

    None where there is nothing to predict by.
    """
    profile, cost = record.conclusion.profile, record.conclusion.cost_model
    if profile is None or cost is None:
        return None
    plan = record.plan if strategy is None else make_plan(profile, cost, strategy)
    timeline = predicted(record) if strategy is None else simulate(profile, plan, cost)
    if timeline is None:
        return None
    rows = _stream_rows(plan)
    return {
        "kind": "predicted",
        "strategy": plan.strategy,
        "num_steps": None,
        "backward": _exactly(timeline.backward_seconds),
        "compute": _exactly(timeline.computation_end_seconds),
        "computation": _computation(profile, plan, timeline, cost),
        "spans": [
            {
                "group": index,
                "num_threads": group.num_threads,
                "num_bytes": plan.group_bytes[index],
                "start": group.start,
                "stop": group.stop,
                "stream": rows[group.stream],
                "from": _exactly(span.start_seconds),
                "to": _exactly(span.end_seconds),
                "ready": _exactly(span.ready_seconds),
            }
            for index, (group, span) in enumerate(zip(plan.groups, timeline.groups, strict=True))
        ],
    }


def measured_timeline(record: PlanRecord, measured: TimelineRecord) -> dict[str, Any]:
    """What the steps under the plan did, median and quartiles."""
    plan = record.plan
    rows = _stream_rows(plan)
    spans = []
    for span in measured.spans:
        known = 0 <= span.group < len(plan.groups)
        group = plan.groups[span.group] if known else None
        spans.append(
            {
                "group": span.group,
                "num_threads": span.num_threads,
                "num_bytes": span.num_bytes,
                "start": None if group is None else group.start,
                "stop": None if group is None else group.stop,
                "stream": 0 if group is None else rows[group.stream],
                "from": dataclasses.asdict(span.start),
                "to": dataclasses.asdict(span.end),
                "ready": dataclasses.asdict(span.ready),
            }
        )
    return {
        "kind": "measured",
        "strategy": plan.strategy,
        "num_steps": measured.num_steps,
        "backward": dataclasses.asdict(measured.backward),
        "compute": dataclasses.asdict(measured.compute),
        # What stretches a measured computation is not known; where gradients come, is.
        "computation": [
            {"from": earlier, "to": later, "beside": None, "rate": None}
            for earlier, later in _pairs(
                [0.0, *sorted(s.ready.median for s in measured.spans), measured.compute.median]
            )
        ],
        "spans": spans,
    }


def _stream_rows(plan: Plan) -> dict[int, int]:
    """Each stream's row of a timeline: their numbers need not follow each other."""
    return {stream: row for row, stream in enumerate(sorted({g.stream for g in plan.groups}))}


def _exactly(seconds: float) -> dict[str, float]:
    return {"low": seconds, "median": seconds, "high": seconds}


def _pairs(edges: Sequence[float]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def _computation(
    profile: BackwardProfile, plan: Plan, timeline: Timeline, cost: CostModel
) -> list[dict[str, Any]]:
    """Pieces of backward computation, each beside the same all-reduces: where, and how fast."""
    end = timeline.computation_end_seconds
    edges = {0.0, end}
    for span in timeline.groups:
        edges |= {at for at in (span.start_seconds, span.end_seconds) if at < end}
    pieces = []
    for earlier, later in _pairs(sorted(edges)):
        middle = (earlier + later) / 2
        beside = [
            index
            for index, span in enumerate(timeline.groups)
            if span.start_seconds <= middle < span.end_seconds
        ]
        threads = sum(plan.groups[index].num_threads for index in beside)
        rate = float(cost.compute_rate(threads)) if beside else 1.0
        pieces.append({"from": earlier, "to": later, "beside": beside, "rate": rate})
    return pieces


def contention_view(record: PlanRecord) -> dict[str, Any]:
    """The samples, the curves fitted to them, and how far they are apart."""
    cost, samples = record.conclusion.cost_model, record.conclusion.samples
    view: dict[str, Any] = {
        "threads": list(record.threads),
        "num_workers": record.plan.num_workers,
        "median_error": record.conclusion.median_error,
        "weighted_error": None,
        "held_out_error": record.conclusion.held_out_error,
        "model": None,
        "curves": None,
        "samples": [],
        "notes": list(record.conclusion.notes),
    }
    if cost is None:
        return view
    view["model"] = {
        "formula": cost.formula(),
        "startup_seconds": cost.startup_seconds,
        "exclusive_startup_seconds": cost.exclusive_startup_seconds,
    }
    most = max([*record.threads, *(s.num_threads for s in samples)])
    view["curves"] = _curves(cost, most)
    view["at_threads"] = [
        {
            "num_threads": r,
            "slowdown": 1 / float(cost.compute_rate(r)),
            "overlapped_rate": float(cost.overlapped_rate(r)),
            "exclusive_rate": float(cost.exclusive_rate(r)),
        }
        for r in record.threads
        if _possible(cost, r)
    ]
    if samples:
        errors = prediction_errors(cost, samples)
        # Of these points by this model, whatever an earlier version has kept.
        view["median_error"] = float(np.median(np.abs(errors)))
        # Many short all-reduces may be missed by much, and matter little.
        view["weighted_error"] = _weighted_median(
            np.abs(errors), np.array([sample.wall_seconds for sample in samples])
        )
        computing = iter(computation_errors(cost, samples).tolist())
        for sample, error in zip(samples, errors.tolist(), strict=True):
            overlapped = sample.overlap_seconds > 0
            startup = cost.startup_seconds if overlapped else cost.exclusive_startup_seconds
            predicted = sample.wall_seconds * (1 + error)
            sending = sample.wall_seconds - startup
            tells_rate = sending > 0 and predicted >= 2 * startup
            hat = float(cost.transmitted_bytes(sample.num_bytes))
            view["samples"].append(
                dataclasses.asdict(sample)
                | {
                    "error": error,
                    "predicted_seconds": predicted,
                    "compute_error": next(computing) if sample.compute_seconds > 0 else None,
                    "slowdown": (
                        sample.overlap_seconds / sample.compute_seconds
                        if sample.compute_seconds > 0
                        else None
                    ),
                    # One that is startup, most of all, says nothing of how fast it sends.
                    "rate": hat / sending if tells_rate else None,
                }
            )
    return view


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    before = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(before, before[-1] / 2)]])


def _possible(cost: CostModel, num_threads: float) -> bool:
    try:
        cost.compute_rate(num_threads), cost.overlapped_rate(num_threads)
        cost.exclusive_rate(num_threads)
    except ValueError:
        return False
    return True


def _curves(cost: CostModel, most: int) -> dict[str, list[float]]:
    """The fitted formulas over 1 to `most` threads, as far as their rates are positive."""
    grid = [r for r in np.linspace(1, max(most, 2), _CURVE_POINTS).tolist() if _possible(cost, r)]
    return {
        "num_threads": grid,
        "slowdown": (1 / cost.compute_rate(grid)).tolist() if grid else [],
        "overlapped_rate": cost.overlapped_rate(grid).tolist() if grid else [],
        "exclusive_rate": cost.exclusive_rate(grid).tolist() if grid else [],
    }


@dataclass(frozen=True)
class MeasuredRun:
    """What one run has measured under a plan, to be laid beside predictions.

    Attributes:
      run: the run's name.
      record: its plan.
      step_seconds: whole steps under the plan.
      timeline: traced steps; None without any.
    """

    run: str
    record: PlanRecord
    step_seconds: tuple[float, ...] = ()
    timeline: TimelineRecord | None = None


def strategy_names(record: PlanRecord) -> list[str]:
    """The strategies that `strategies_view` compares; none without a profile or a model."""
    if record.conclusion.profile is None or record.conclusion.cost_model is None:
        return []
    return [*dict.fromkeys(one.name for one in _all_strategies(record)), IDEAL]


def strategies_view(
    record: PlanRecord, num_workers: int | None = None, name: str | None = None
) -> dict[str, Any]:
    """Predicted backward time of every strategy on the record's profile.

    Strategies that do not choose threads are there with each allowed number.

    Args:
      record: whose profile and model to take.
      num_workers: another world size than the record's.
      name: of the one strategy to show; by default all, which takes seconds for thousands of
        tensors.

    Raises:
      ValueError: there is no such strategy.
    """
    workers = record.plan.num_workers if num_workers is None else num_workers
    names = strategy_names(record)
    if name is not None and names and name not in names:
        raise ValueError(f"strategy must be one of {', '.join(names)}, got {name!r:.80}")
    chosen = [one for one in names if name in (None, one)]
    rows = [dict(row) for one in chosen for row in _rows(record, workers, one)]
    return {"num_workers": workers, "rows": rows}


_ROWS: Cache[tuple[dict[str, Any], ...]] = Cache(2048)


def _rows(record: PlanRecord, num_workers: int, name: str) -> tuple[dict[str, Any], ...]:
    """One strategy, with each number of threads that it is there with."""

    def plan() -> tuple[dict[str, Any], ...]:
        profile, cost = record.conclusion.profile, record.conclusion.cost_model
        assert profile is not None and cost is not None
        model = cost.with_workers(num_workers)
        if name == IDEAL:
            bound = ideal(profile, model, min(record.threads))
            return (_row(bound.name, None, bound) | {"fingerprint": None},)
        named = {str(i): s for i, s in enumerate(_all_strategies(record)) if s.name == name}
        return tuple(
            _row(one.name, None if one.chooses_threads else one.allowed_threads[0], compared)
            for one, compared in zip(named.values(), compare(profile, model, named), strict=True)
        )

    return _ROWS.get((record, num_workers, name), plan)


def strategy_like(
    record: PlanRecord, name: str, num_threads: int | None = None
) -> strategies.Strategy:
    """The strategy of that name as `strategies_view` has it.

    Raises:
      ValueError: it is none, or it is not there with so many threads.
    """
    named = [one for one in _all_strategies(record) if one.name == name]
    for strategy in named:
        if num_threads is None or strategy.allowed_threads == (num_threads,):
            return strategy
    if not named:
        raise ValueError(f"strategy must be one of {', '.join(strategies.BY_NAME)}, got {name!r}")
    raise ValueError(f"threads must be one of {', '.join(map(str, record.threads))}")


def _all_strategies(record: PlanRecord) -> list[strategies.Strategy]:
    """The user's own strategy, and every other with the arguments that mean the same."""
    given = {
        name: value
        for name, value in dataclasses.asdict(record.strategy).items()
        if name in ("max_groups", "chunks", "exact")
    }
    chosen: list[strategies.Strategy] = []
    for other in every_strategy(given).values():
        strategy = record.strategy if other.name == record.strategy.name else other
        if strategy.chooses_threads:
            chosen.append(strategy.with_threads(record.threads))
        else:
            chosen += [strategy.with_threads((r,)) for r in record.threads]
    return chosen


def _row(name: str, num_threads: int | None, compared: Compared) -> dict[str, Any]:
    plan, timeline = compared.plan, compared.timeline
    return {
        "strategy": name,
        "num_threads": num_threads,
        "threads": [] if plan is None else sorted({group.num_threads for group in plan.groups}),
        "groups": None if plan is None else len(plan.groups),
        "backward_seconds": None if timeline is None else timeline.backward_seconds,
        "fingerprint": None if plan is None else plan.fingerprint,
    }


def steps_view(record: PlanRecord, run: str, runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Whole steps as measured: in turns, and in the record's run and others of the same job.

    `race` has the plans whose steps took turns, as `race_view` has them: these are compared. In
    `measured` is what ran at other times, which compares with nothing; `is_own` says that it was in
    the record's own run. A step is backward and the rest of it (forward computation, the
    optimizer), `rest_seconds`, which no strategy changes: whole steps under the plan less predicted
    backward time. None where nothing is left: then the prediction is wrong, and says nothing of
    steps.

    Args:
      record: of the plan.
      run: in which it came into force.
      runs: what was measured; those of other models or world sizes are left out.
    """
    alike = [one for one in runs if _same_job(one.record, record)]
    own = [
        one
        for one in alike
        if one.run == run and one.record.plan.fingerprint == record.plan.fingerprint
    ]
    seconds = [s for one in own for s in one.step_seconds]
    timeline = predicted(record)
    rest = None
    if seconds and timeline is not None:
        left = statistics.median(seconds) - timeline.backward_seconds
        rest = left if left > 0 else None
    measured = [
        {
            "run": one.run,
            "is_own": one.run == run,
            "strategy": one.record.plan.strategy,
            "threads": sorted({g.num_threads for g in one.record.plan.groups}),
            "num_steps": len(one.step_seconds),
            "step_seconds": statistics.median(one.step_seconds),
            "backward_seconds": None if one.timeline is None else one.timeline.backward.median,
            "fingerprint": one.record.plan.fingerprint,
        }
        for one in alike
        if one.step_seconds
    ]
    return {
        "rest_seconds": rest,
        "race": race_view(record.conclusion.race),
        "measured": measured,
    }


def _same_job(one: PlanRecord, other: PlanRecord) -> bool:
    """Of the same model, whatever order its gradients were found in, and world size."""
    if one.plan.num_workers != other.plan.num_workers:
        return False
    return dict(zip(one.plan.tensor_names, one.plan.num_bytes, strict=True)) == dict(
        zip(other.plan.tensor_names, other.plan.num_bytes, strict=True)
    )
