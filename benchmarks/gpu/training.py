"""Step `training`: plans against DDP and against NCCL's own channels, predicted and measured.

Two teams of two ranks train the same network, and take turns. In "planned" NCCL follows the plan's
channels; in "own" it is left alone, in processes of its own, since what a channel is made of is
fixed per process. LIBRA's Algorithm 2 (`tf_libra.autotune`) runs in each. Then every round holds
one step of every strategy, in an order that is drawn again for each round.

    none        no communication: the limit (planned)
    ddp         torch.nn.parallel.DistributedDataParallel with its default buckets (own)
    syneasgd    one all-reduce after backward computation (own)
    mg-wfbp     MG-WFBP's groups (own)
    libra-m     MG-WFBP's groups with LIBRA's threads (planned)
    libra       LIBRA's groups and threads (planned)
    libra-own   LIBRA's groups, channels by NCCL (own): what threads alone are worth
    mg-wfbp-efficiency, libra-own-efficiency    the same under NCCL's policy of few channels (own)
"""

import dataclasses
import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu import documents, models
from benchmarks.gpu.buckets import Bucket, buckets, ddp_groups
from benchmarks.gpu.gradients import FlatGradients, StepMarks, backward_order
from benchmarks.gpu.observing import Seen, observation
from benchmarks.gpu.overlap import Span
from benchmarks.gpu.profiles import spread
from benchmarks.gpu.rank import Context
from tf_libra import (
    BackwardProfile,
    Plan,
    TensorGroup,
    make_plan,
    simulate,
    strategies,
)
from tf_libra.autotune import Budget, TensorSpec, Trial, TrialResult, Tuner, TuningResult, tune
from tf_libra.cost_model import CostModel

BASELINES = ("ddp", "mg-wfbp", "syneasgd", "none")
# In "own" only NCCL knows its threads: all its samples go by this number.
_OWN_THREADS = 1
_LEARNING_RATE = 1e-4
_MAX_STEPS = 200
# Of a network's time: after so much of it nothing more is tried, and rounds begin.
_TUNING_SHARE = 0.45
_DRY_ROUNDS = 2
# Of tuning: enough to look at every plan one time, with two numbers of threads.
_DRY_STEPS = 30


@dataclass(frozen=True)
class _Strategy:
    """A compared strategy: a team and its plan; None for DDP and without communication.

    NCCL's default policy chooses the channels of team "own" if `cta_policy` is None.
    """

    name: str
    team: str
    plan: Plan | None
    predicted_seconds: float | None
    cta_policy: str | None = None


class _Trainer:
    """One rank's networks: one with all gradients in a buffer, one in DDP."""

    def __init__(self, context: Context, name: str) -> None:
        job = context.job
        self.context = context
        ranks = list(job.teams[job.team])
        make: dict[str, Any] = {"rank": ranks.index(job.rank), "dry_run": job.dry_run}
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

    def step(
        self,
        plan: Plan | None,
        *,
        marking: bool = False,
        update: bool = True,
        cta_policy: str | None = None,
    ) -> StepMarks:
        """Queues a step under a plan; without one it does not communicate."""
        communication = self.context.communication.with_policy(cta_policy)
        return self.gradients.step(
            self.task.model,
            self.task.batch,
            self.optimizer if update else None,
            buckets=() if plan is None else self._buckets(plan),
            communication=None if plan is None else communication,
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
        """Returns the norm of each tensor's gradient after a step, in backward order."""
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
    conclusions = _tune(trainer)
    profile = conclusions["planned"].profile
    if profile is not None:
        found["paired_profile"] = documents.as_value(profile)
    models_of: dict[str, CostModel] = {}
    for team, tuned in conclusions.items():
        prefix = "" if team == "planned" else "own_"
        found[f"{prefix}samples"] = [documents.sample_value(sample) for sample in tuned.samples]
        found[f"{prefix}fit"] = {
            "median_error": tuned.median_error,
            "held_out_error": tuned.held_out_error,
            "notes": list(tuned.notes),
        }
        if tuned.cost_model is not None:
            models_of[team] = tuned.cost_model
            found[f"{prefix}cost_model"] = documents.as_value(tuned.cost_model)
    context.write(results)  # worth keeping without a model
    if profile is None or set(models_of) != set(context.job.teams):
        raise RuntimeError("a team has no model: there was no time for its samples")

    compared = context.agree(_strategies(context, profile, models_of))
    found["plans"] = {
        compared_plan.name: documents.as_value(compared_plan.plan)
        for compared_plan in compared
        if compared_plan.plan is not None
    }
    found["gradients"] = _check_gradients(trainer, compared)
    context.write(results)
    complete = _rounds(trainer, compared, results, found)
    context.write(results, complete=complete)


def _tune(trainer: _Trainer) -> dict[str, TuningResult]:
    """Runs Algorithm 2 in each team, first in one, then in the other; returns their results."""
    context, job = trainer.context, trainer.context.job
    share = context.agree(context.time_left() * _TUNING_SHARE)
    seconds = max(share / len(job.teams), 1.0)
    budget = Budget(_DRY_STEPS if job.dry_run else _MAX_STEPS, seconds)
    conclusions = {}
    for team, ranks in job.teams.items():
        threads = job.threads if team == "planned" else (_OWN_THREADS,)
        # What is compared here are plans, in rounds of their own.
        strategy = strategies.Libra(threads=threads, race=False)
        tuning = tune(trainer.specs(), strategy, len(ranks), budget, leaves_records=False)
        conclusions[team] = _driven(trainer, tuning, team)
    return conclusions


def _driven(trainer: _Trainer, tuning: Tuner, team: str) -> TuningResult:
    """Makes a team's experiments while the other waits; the team's first rank judges."""
    context, job = trainer.context, trainer.context.job
    source = job.teams[team][0]
    observed: TrialResult | None = None
    for step in itertools.count(1):
        experiment, conclusion = None, None
        if job.rank == source:
            try:
                experiment = tuning.send(observed)
            except StopIteration as finished:
                conclusion = finished.value
        experiment, conclusion = context.agree((experiment, conclusion), source)
        if experiment is None:
            return conclusion
        observed = _experiment(trainer, experiment, step) if team == job.team else None
    raise AssertionError("itertools.count ends")


def _experiment(trainer: _Trainer, experiment: Trial, step: int) -> TrialResult | None:
    """Runs a step under a plan; returns the whole team's result, None if it is not traced."""
    context = trainer.context
    context.team_barrier()
    marks = trainer.step(experiment.plan, marking=experiment.traced, update=False)
    context.device.synchronize()
    if not experiment.traced:
        return None
    mine = Seen(
        tuple(mark.since(marks.backward) for mark in marks.produced if mark is not None),
        tuple(
            (index, Span(t.start.since(marks.backward), t.end.since(marks.backward)))
            for index, t in marks.transfers
        ),
    )
    return observation(context.team_gather(mine), experiment.plan, step)


def _strategies(
    context: Context, profile: BackwardProfile, models_of: dict[str, CostModel]
) -> list[_Strategy]:
    """Everything that is compared, with its plan and what the model says of it."""
    planned, own = models_of["planned"], models_of["own"]
    threads = context.job.threads
    fixed = {"num_threads": _OWN_THREADS}
    libra = make_plan(profile, planned, strategies.Libra(threads=threads))
    groups = tuple(TensorGroup(g.start, g.stop, _OWN_THREADS) for g in libra.groups)
    own_libra = dataclasses.replace(libra, groups=groups, strategy="libra-own")
    seconds = _predicted(profile, own_libra, own)
    ddp = _ddp_plan(profile)
    compared = [
        _Strategy("none", "planned", None, float(profile.compute_seconds.sum())),
        _Strategy("ddp", "own", None, _predicted(profile, ddp, own)),
        _of_plan("own", make_plan(profile, own, strategies.SynEasgd(**fixed))),
        _of_plan("own", make_plan(profile, own, strategies.MgWfbp(**fixed))),
        _of_plan("planned", make_plan(profile, planned, strategies.LibraM(threads=threads))),
        _of_plan("planned", libra),
        _of_plan("own", dataclasses.replace(own_libra, predicted_seconds=seconds)),
    ]
    # Every rank draws up the same list; the rank whose list counts may be of another team.
    policies = max(context.gather(context.communication.cta_policies), key=len)
    # The model was fitted to all-reduces under the default policy.
    return compared + [
        dataclasses.replace(
            candidate, name=f"{candidate.name}-{policy}", predicted_seconds=None, cta_policy=policy
        )
        for policy in policies
        for candidate in compared
        if candidate.name in ("mg-wfbp", "libra-own")
    ]


def _of_plan(team: str, plan: Plan) -> _Strategy:
    return _Strategy(plan.strategy, team, plan, plan.predicted_seconds)


def _ddp_plan(profile: BackwardProfile) -> Plan:
    sizes = [tensor.num_bytes for tensor in profile.tensors]
    return Plan.for_profile(profile, ddp_groups(sizes, _OWN_THREADS), 2, "ddp")


def _predicted(profile: BackwardProfile, plan: Plan, cost: CostModel) -> float:
    return simulate(profile, plan, cost).backward_seconds


def _step(trainer: _Trainer, strategy: _Strategy, *, update: bool = True) -> StepMarks:
    if strategy.name == "ddp":
        return trainer.ddp_step(update=update)
    return trainer.step(strategy.plan, update=update, cta_policy=strategy.cta_policy)


def _check_gradients(trainer: _Trainer, compared: list[_Strategy]) -> dict[str, Any]:
    """One step of each strategy from the same weights: largest difference of a gradient's norm.

    Relative to DDP's, tensor by tensor, on the same random numbers. No weight has moved until here.
    The teams' processes may choose different algorithms for a convolution, which in TF32 differ by
    more than sums do: so here they compute exactly.
    """
    context = trainer.context
    norms: dict[str, list[float]] = {}
    for strategy in compared:
        if strategy.name == "none":
            continue
        mine = None
        if strategy.team == context.job.team:
            torch.manual_seed(context.job.teams[context.job.team].index(context.job.rank))
            with context.device.exact():
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
    backward: dict[str, list[float]] = {candidate.name: [] for candidate in compared}
    whole: dict[str, list[float]] = {candidate.name: [] for candidate in compared}
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
            "cta_policy": strategy.cta_policy,
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
