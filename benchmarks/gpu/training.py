"""Step `training`: plans against DDP and against NCCL's own channels, predicted and measured.

Two teams of two ranks train the same network, and take turns. In "planned" NCCL follows the plan's
channels; in "own" it is left alone, in processes of its own, since what a channel is made of is
fixed per process. LIBRA's Algorithm 2 runs in each: a profile without communication, samples under
random plans, a fit, a plan. Then every round holds one step of every strategy, in an order drawn
anew.

    none        no communication: the limit (planned)
    ddp         torch.nn.parallel.DistributedDataParallel with its default buckets (own)
    syneasgd    one all-reduce after backward computation (own)
    mg-wfbp     MG-WFBP's groups (own)
    libra-m     MG-WFBP's groups with LIBRA's threads (planned)
    libra       LIBRA's groups and threads (planned)
    libra-own   LIBRA's groups, channels by NCCL (own): what threads alone are worth
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu import documents, models
from benchmarks.gpu.buckets import Bucket, buckets, ddp_groups
from benchmarks.gpu.gradients import FlatGradients, StepMarks, backward_order
from benchmarks.gpu.overlap import Progress, Span, last_to_arrive, sample
from benchmarks.gpu.profiles import backward_profile, spread
from benchmarks.gpu.rank import Context
from tf_libra import (
    BackwardProfile,
    ContentionModel,
    OverlapSample,
    Plan,
    TensorGroup,
    make_plan,
    simulate,
    strategies,
)
from tf_libra.cost_model import FitResult, fit
from tf_libra.tuning import TensorSpec, measuring_plans, random_plans

BASELINES = ("ddp", "mg-wfbp", "syneasgd", "none")
# In "own" nobody but NCCL knows its threads: all its samples go by this number.
_OWN_THREADS = 1
_LEARNING_RATE = 1e-4
_WARM_STEPS = 3
_PROFILE_STEPS = 8
_SAMPLED_PLANS = 16
_SAMPLED_STEPS = 2
# Of a network's time: after so much of it no more plans are sampled, and rounds begin.
_SAMPLING_SHARE = 0.45
_DRY_ROUNDS = 2
_DRY_PLANS = 2


@dataclass(frozen=True)
class _Strategy:
    """What is compared: a team and its plan; None where DDP or nobody communicates."""

    name: str
    team: str
    plan: Plan | None
    predicted_seconds: float | None


class _Trainer:
    """One rank's networks: one with all gradients in a buffer, one in DDP."""

    def __init__(self, context: Context, name: str) -> None:
        job = context.job
        self.context = context
        ranks = list(job.teams[job.team])
        make = {"rank": ranks.index(job.rank), "dry_run": job.dry_run}
        make |= {"batch_factor": job.batch_factor}
        self.task = models.make(name, context.device.torch_device, **make)
        order = context.agree(backward_order(self.task.model, self.task.batch))
        self.gradients = FlatGradients(self.task.model, order, context.device)
        self.optimizer = torch.optim.SGD(self.task.model.parameters(), lr=_LEARNING_RATE)
        self._ddp: DistributedDataParallel | None = None
        self._ddp_optimizer: torch.optim.Optimizer | None = None
        if job.team == "own":
            twin = models.make(name, context.device.torch_device, **make)
            # Statistics of batches are no gradients: not sent, as in all other strategies.
            self._ddp = DistributedDataParallel(
                twin.model, process_group=context.process_group, broadcast_buffers=False
            )
            self._ddp_optimizer = torch.optim.SGD(self._ddp.parameters(), lr=_LEARNING_RATE)

    def specs(self) -> list[TensorSpec]:
        """The gradients as planners know them before anything was measured."""
        gradients = self.gradients
        return [
            TensorSpec(name, size, "float32")
            for name, size in zip(gradients.names, gradients.num_bytes, strict=True)
        ]

    def step(self, plan: Plan | None, *, marking: bool = False, update: bool = True) -> StepMarks:
        """Queues a step under a plan; without one it does not communicate."""
        return self.gradients.step(
            self.task.model,
            self.task.batch,
            self.optimizer if update else None,
            buckets=() if plan is None else self._buckets(plan),
            communication=None if plan is None else self.context.communication,
            after_backward=plan is not None and plan.after_backward,
            marking=marking,
        )

    def ddp_step(self, *, update: bool = True) -> StepMarks:
        """Queues a step of DDP, as its users write it."""
        assert self._ddp is not None and self._ddp_optimizer is not None
        device = self.context.device
        marks = StepMarks(start=device.mark())
        self._ddp_optimizer.zero_grad(set_to_none=True)
        loss = self._ddp(*self.task.batch)
        marks.backward = device.mark()
        loss.backward()
        marks.reduced = device.mark()
        if update:
            self._ddp_optimizer.step()
        marks.updated = device.mark()
        return marks

    def ddp_buckets(self) -> str | None:
        """Sizes of DDP's buckets in bytes, as it says itself."""
        if self._ddp is None:
            return None
        return self._ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes")

    def gradient_norms(self, *, of_ddp: bool) -> list[float]:
        """Of each tensor after a step, in backward order."""
        parameters = dict(
            (self._ddp.module if of_ddp and self._ddp else self.task.model).named_parameters()
        )
        norms = [parameters[name].grad.norm() for name in self.gradients.names]
        return torch.stack(norms).cpu().tolist()

    def _buckets(self, plan: Plan) -> tuple[Bucket, ...]:
        return buckets(plan, self.gradients.item_bytes)


def run(context: Context) -> None:
    """Trains the job's one network under every strategy, for as long as there is time."""
    (name,) = context.job.models
    trainer = _Trainer(context, name)
    found: dict[str, Any] = {
        "batch_size": len(trainer.task.batch[0]),
        "parameters": sum(trainer.gradients.num_bytes) // trainer.gradients.item_bytes,
        "tensors": len(trainer.gradients.names),
    }
    results = {"models": {name: found}}
    profile = _profile(trainer)
    found["paired_profile"] = documents.as_value(profile)
    context.write(results)

    samples = _sample(trainer, profile)
    for team, seen in samples.items():
        prefix = "" if team == "planned" else "own_"
        found[f"{prefix}samples"] = [documents.sample_value(one) for one in seen]
    context.write(results)  # worth keeping without a model
    fits = {team: fit(seen, 2) for team, seen in samples.items() if seen}
    for team, result in fits.items():
        prefix = "" if team == "planned" else "own_"
        found[f"{prefix}cost_model"] = documents.as_value(result.model)
        found[f"{prefix}fit"] = _fit_value(result)
    context.write(results)
    if set(fits) != set(context.job.teams):
        raise RuntimeError("a team has no samples: there was no time for any")

    compared = context.agree(_strategies(context, profile, fits))
    found["plans"] = {
        one.name: documents.as_value(one.plan) for one in compared if one.plan is not None
    }
    found["gradients"] = _check_gradients(trainer, compared)
    context.write(results)
    complete = _rounds(trainer, compared, results, found)
    context.write(results, complete=complete)


def _profile(trainer: _Trainer) -> BackwardProfile:
    """Contention-free backward computation of the planned team, both ranks at work."""
    context = trainer.context
    steps = []
    if context.job.team == "planned":
        for number in range(_WARM_STEPS + _PROFILE_STEPS):
            context.team_barrier()
            marks = trainer.step(None, marking=True, update=False)
            context.device.synchronize()
            if number >= _WARM_STEPS:
                steps.append(marks)
        profiles = context.team_gather(backward_profile(trainer.gradients, steps))
        # The slower rank: all-reduces wait for it.
        profile = max(profiles, key=lambda one: float(one.compute_seconds.sum()))
    else:
        profile = None
    return context.agree(profile)


def _sample(trainer: _Trainer, profile: BackwardProfile) -> dict[str, list[OverlapSample]]:
    """Samples of both teams; first one team, then the other."""
    context, job = trainer.context, trainer.context.job
    until = context.time_left() * (1 - _SAMPLING_SHARE)
    samples: dict[str, list[OverlapSample]] = {team: [] for team in job.teams}
    for index, team in enumerate(job.teams):
        threads = job.threads if team == "planned" else (_OWN_THREADS,)
        # Half of the time each; at least one plan of every kind whatever the clock says.
        share = until + (context.time_left() - until) * (1 - index) / 2
        count = _DRY_PLANS if job.dry_run else _SAMPLED_PLANS
        for number, plan in enumerate(_sampling_plans(trainer, profile, threads, count)):
            if number >= len(threads) + 1 and not context.goes_on(share):
                break
            seen = _sampled(trainer, plan, profile) if team == job.team else []
            samples[team] += context.agree(seen, source=job.teams[team][0])
    return samples


def _sampling_plans(
    trainer: _Trainer, profile: BackwardProfile, threads: Sequence[int], count: int
) -> Iterator[Plan]:
    """After backward with every number of threads, and at random beside it."""
    beside = random_plans(profile, threads, 2, count, seed=trainer.context.job.seed)
    alone = measuring_plans(trainer.specs(), threads, 2)
    yield from alone[: len(threads)]
    yield from beside


def _sampled(trainer: _Trainer, plan: Plan, profile: BackwardProfile) -> list[OverlapSample]:
    """Steps under a plan, the first of which is not counted."""
    context = trainer.context
    done = np.cumsum(profile.compute_seconds)
    found = []
    for number in range(1 + _SAMPLED_STEPS):
        context.team_barrier()
        marks = trainer.step(plan, marking=True, update=False)
        context.device.synchronize()
        if number == 0:
            continue
        spans = [
            (index, Span(t.start.since(marks.backward), t.end.since(marks.backward)))
            for index, t in marks.transfers
        ]
        produced = np.array([mark.since(marks.backward) for mark in marks.produced])
        # Work is done when all before it is: a tensor out of its order adds its own part then.
        order = np.argsort(produced, kind="stable")
        at = np.maximum.accumulate(np.maximum(produced[order], 0.0))
        work = np.cumsum(profile.compute_seconds[order])
        work[-1] = done[-1]
        progress = Progress((0.0, *at.tolist()), (0.0, *work.tolist()))
        ranks = context.team_gather((spans, progress))
        for position, (index, _) in enumerate(spans):
            rank = last_to_arrive([spans_of[position][1] for spans_of, _ in ranks])
            group = plan.groups[index]
            one = sample(
                ranks[rank][0][position][1],
                ranks[rank][1],
                sum(plan.num_bytes[group.start : group.stop]),
                group.num_threads,
                step=number,
                group=index,
                plan=plan.fingerprint[:12],
            )
            if one is not None:
                found.append(one)
    return found


def _strategies(
    context: Context, profile: BackwardProfile, fits: dict[str, FitResult]
) -> list[_Strategy]:
    """Everything that is compared, with its plan and what the model says of it."""
    planned, own = fits["planned"].model, fits["own"].model
    threads = context.job.threads
    fixed = {"num_threads": _OWN_THREADS}
    libra = make_plan(profile, planned, strategies.Libra(threads=threads))
    groups = tuple(TensorGroup(g.start, g.stop, _OWN_THREADS) for g in libra.groups)
    ddp = _ddp_plan(profile)
    return [
        _Strategy("none", "planned", None, float(profile.compute_seconds.sum())),
        _Strategy("ddp", "own", None, _predicted(profile, ddp, own)),
        _of_plan("own", make_plan(profile, own, strategies.SynEasgd(**fixed))),
        _of_plan("own", make_plan(profile, own, strategies.MgWfbp(**fixed))),
        _of_plan("planned", make_plan(profile, planned, strategies.LibraM(threads=threads))),
        _of_plan("planned", libra),
        _of_plan(
            "own",
            dataclasses.replace(
                libra,
                groups=groups,
                strategy="libra-own",
                predicted_seconds=_predicted(
                    profile, dataclasses.replace(libra, groups=groups), own
                ),
            ),
        ),
    ]


def _of_plan(team: str, plan: Plan) -> _Strategy:
    return _Strategy(plan.strategy, team, plan, plan.predicted_seconds)


def _ddp_plan(profile: BackwardProfile) -> Plan:
    sizes = [tensor.num_bytes for tensor in profile.tensors]
    return Plan.for_profile(profile, ddp_groups(sizes, _OWN_THREADS), 2, "ddp")


def _predicted(profile: BackwardProfile, plan: Plan, cost: ContentionModel) -> float:
    return simulate(profile, plan, cost).backward_seconds


def _step(trainer: _Trainer, strategy: _Strategy, *, update: bool = True) -> StepMarks:
    if strategy.name == "ddp":
        return trainer.ddp_step(update=update)
    return trainer.step(strategy.plan, update=update)


def _check_gradients(trainer: _Trainer, compared: list[_Strategy]) -> dict[str, Any]:
    """One step of each strategy from the same weights: largest difference of a gradient's norm.

    Relative to DDP's, tensor by tensor, on the same random numbers. No weight has moved until here.
    """
    context = trainer.context
    norms: dict[str, list[float]] = {}
    for strategy in compared:
        if strategy.name == "none":
            continue
        mine = None
        if strategy.team == context.job.team:
            torch.manual_seed(context.job.teams[context.job.team].index(context.job.rank))
            _step(trainer, strategy, update=False)
            context.device.synchronize()
            mine = trainer.gradient_norms(of_ddp=strategy.name == "ddp")
        norms[strategy.name] = context.agree(mine, context.job.teams[strategy.team][0])
    expected = np.array(norms["ddp"])
    scale = np.maximum(expected, 1e-3 * expected.max())
    return {
        name: float(np.max(np.abs(np.array(values) - expected) / scale))
        for name, values in norms.items()
    }


def _rounds(
    trainer: _Trainer, compared: list[_Strategy], results: dict[str, Any], found: dict[str, Any]
) -> bool:
    """Rounds of one step per strategy until the time is up; returns whether there were any."""
    context = trainer.context
    order = random.Random(context.job.seed)
    backward: dict[str, list[float]] = {one.name: [] for one in compared}
    whole: dict[str, list[float]] = {one.name: [] for one in compared}
    count, longest = -1, 0.0  # the first round warms up
    while count < 1 or context.goes_on(1.5 * longest):
        began = context.time_left()
        for strategy in order.sample(compared, len(compared)):
            context.barrier()
            mine = None
            if strategy.team == context.job.team:
                marks = _step(trainer, strategy)
                context.device.synchronize()
                mine = (marks.reduced.since(marks.backward), marks.updated.since(marks.start))
            # The slowest rank: the others waited for it, or will.
            seen = [values for values in context.gather(mine) if values is not None]
            if count >= 0:
                backward[strategy.name].append(max(values[0] for values in seen))
                whole[strategy.name].append(max(values[1] for values in seen))
        count += 1
        longest = context.agree(max(longest, began - context.time_left()))
        if count:
            found["rounds"] = count
            found["ddp_buckets"] = context.agree(trainer.ddp_buckets(), context.job.teams["own"][0])
            found["strategies"] = _rows(compared, backward, whole)
            context.write(results)
        if context.job.dry_run and count == _DRY_ROUNDS:
            break
    return count > 0


def _rows(
    compared: list[_Strategy], backward: dict[str, list[float]], whole: dict[str, list[float]]
) -> dict[str, Any]:
    rows = {}
    for strategy in compared:
        name = strategy.name
        seconds = spread(backward[name])
        predicted = strategy.predicted_seconds
        rows[name] = {
            "channels_by": {"own": "NCCL", "planned": "plan"}[strategy.team],
            "backward_seconds": seconds,
            "step_seconds": spread(whole[name]),
            "predicted_seconds": predicted,
            "prediction_error": None if predicted is None else predicted / seconds["median"] - 1,
            "ratios": {
                baseline: spread(np.divide(backward[name], backward[baseline]).tolist())
                for baseline in BASELINES
                if baseline != name
            },
            "step_ratios": {
                baseline: spread(np.divide(whole[name], whole[baseline]).tolist())
                for baseline in BASELINES
                if baseline != name
            },
            "rounds": {"backward_seconds": backward[name], "step_seconds": whole[name]},
        }
    return rows


def _fit_value(result: FitResult) -> dict[str, Any]:
    return {
        "median_error": result.median_error,
        "median_computation_error": result.median_computation_error,
        "notes": list(result.notes),
        "warnings": list(result.warnings),
    }
