"""Simulated machine that obeys a cost model exactly."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tf_libra import strategies
from tf_libra.autotune import Budget, TensorSpec, Trial, TrialResult, TuningResult, tune
from tf_libra.cost_model import ContentionModel, CostModel, ProcessorModel
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.simulation import GroupSpan, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

NUM_WORKERS = 4
MODEL = ContentionModel(
    num_workers=NUM_WORKERS,
    hop_latency=5e-5,
    compute=(1.05, 0.06),
    overlapped=(1.5e9, 2.0e9, 0.7),
    exclusive=(1.9e9, 2.2e9, 0.7),
    exponent=0.6,
)
# Of lanes that share their cores with computation.
SHARED = ProcessorModel(NUM_WORKERS, 2e-4, 1.2e-9, 2e-9)
SIZES = [40_000, 4_000, 8_000_000, 8_000, 4_000_000, 2_000, 2_400_000, 1_000, 1_200_000, 600_000]
PROFILE = BackwardProfile.from_arrays(
    SIZES, np.linspace(1e-3, 6e-3, len(SIZES)), [f"t{i}" for i in range(len(SIZES))]
)

BEFORE, AFTER = 0.02, 0.004


class Machine:
    """Machine that runs plans as `simulate` predicts, with noise on every time.

    While two all-reduces are concurrent, a byte takes `gamma` times as long, whatever the plan
    says. Every `whiles` seconds on average, the machine becomes a third slower or recovers. An
    all-reduce starts `waiting` seconds late, since its lanes wait for a core. On the clock a step
    takes `step_seconds`, and `first_seconds` more for a new plan. Gathers overlap with the next
    step under the same plan, up to `forward_seconds`; before a step under another plan they end.
    Ranks leave out the zeros of a profile with densities, and an omitted byte takes `omitted_cost`
    of the time of a sent one.
    """

    _kept: ClassVar[dict[Any, Any]] = {}  # of all machines

    def __init__(
        self,
        profile: BackwardProfile = PROFILE,
        noise: float = 0.0,
        model: CostModel = MODEL,
        gamma: float = 1.0,
        waiting: float = 0.0,
        whiles: float = np.inf,
        seed: int = 0,
        step_seconds: float = 0.05,
        first_seconds: float = 0.0,
        forward_seconds: float = 0.0,
        omitted_cost: float = 0.0,
    ) -> None:
        self.profile = profile
        self.model = model
        self.seconds = 0.0
        self.step_seconds = step_seconds
        self._first_seconds = first_seconds
        self._known: set[str] = set()
        self._forward_seconds = forward_seconds
        self._omitted_cost = omitted_cost
        self._gathering = ""  # fingerprint of the plan of the last step, if it gathers
        self._noise = noise
        self._gamma = gamma
        self._waiting = waiting
        self._random = np.random.default_rng(seed)
        self._whiles = whiles
        self._pace, self._next = (
            1.0,
            whiles * self._random.exponential() if whiles < np.inf else np.inf,
        )
        self._step = 0

    def specs(self, order: Sequence[int] | None = None) -> list[TensorSpec]:
        tensors = self.profile.tensors
        order = range(len(tensors)) if order is None else order
        return [TensorSpec(tensors[i].name, tensors[i].num_bytes, "float32") for i in order]

    def run(self, plan: Plan) -> TrialResult:
        self._step += 1
        self.seconds += self.step_seconds
        self.seconds += self._first_seconds * (plan.fingerprint not in self._known)
        self._known.add(plan.fingerprint)
        while self.seconds > self._next:
            self._pace = 1.0 if self._pace > 1 else 1.38
            self._next += self._whiles * self._random.exponential()
        spans, produced = self._simulated(plan)
        start_ns = 10**18 + self._step * 10**10
        noisy = 1 + self._noise * self._random.random(len(plan.groups))
        effective = effective_group_bytes(self.profile, plan)
        records = tuple(
            AllReduceRecord(
                step=self._step,
                sequence=index,
                plan=plan.fingerprint[:16],
                group=index,
                num_threads=group.num_threads,
                num_bytes=sum(plan.num_bytes[group.start : group.stop]),
                enqueued_ns=start_ns + round(span.ready_seconds * 1e9),
                started_ns=start_ns + round((span.start_seconds + self._waiting) * 1e9),
                first_byte_ns=start_ns + round((span.start_seconds + self._waiting) * 1e9) + 10_000,
                finished_ns=start_ns
                + round(
                    (span.start_seconds + (span.end_seconds - span.start_seconds) * noisy[index])
                    * 1e9
                ),
                tensor_names=plan.tensor_names[group.start : group.stop],
                cpu_ns=core_ns(self.model, effective[index]),
                **self._sent(plan, index, effective[index]),
            )
            for index, (group, span) in enumerate(zip(plan.groups, spans, strict=True))
        )
        production = StepProduction(
            names=plan.tensor_names,
            produced_ns=start_ns + np.round(produced * 1e9).astype(np.int64),
            inferred={},
            backward_start_ns=start_ns,
        )
        delay = self._delay(plan) if plan.fingerprint == self._gathering else 0.0
        self._gathering = plan.fingerprint if plan.gathers else ""
        # What comes before and after backward, and updates that nothing overlaps.
        last_ns = max(
            [*(record.finished_ns for record in records), *production.produced_ns.tolist()]
        )
        called_ns = (start_ns - round((BEFORE + delay) * 1e9), last_ns + round(AFTER * 1e9))
        return at_pace(TrialResult(production, records, called_ns=called_ns), self._pace)

    def _sent(self, plan: Plan, index: int, effective: int) -> dict[str, int]:
        """Returns the bytes that a rank sends of a group, and those that it leaves out."""
        total = plan.group_bytes[index]
        if effective == total:
            return {}
        sent = (effective - self._omitted_cost * total) / (1 - self._omitted_cost)
        sent_bytes = round(float(self.model.transmitted_bytes(sent)))
        all_bytes = round(float(self.model.transmitted_bytes(total)))
        return {"sent_bytes": sent_bytes, "omitted_bytes": all_bytes - sent_bytes}

    def _simulated(self, plan: Plan) -> tuple[Sequence[GroupSpan], np.ndarray]:
        """Returns the groups' spans and the production times of a plan, in seconds without noise.

        The results are cached: plans run for hundreds of steps on equal machines.
        """
        key = plan, id(self.profile), id(self.model), self._gamma, self._waiting
        if key not in self._kept:
            found = self._simulate(plan)
            self._kept[key] = *found, self.profile, self.model  # so that these ids stay theirs
        return self._kept[key][:2]

    def _delay(self, plan: Plan) -> float:
        """Returns the seconds that the gathers of the step before add to a forward pass."""
        profile = replace(self._reordered(plan), rest_seconds=self._forward_seconds)
        return simulate(profile, plan, slower(self.model, self._waiting)).forward_delay_seconds

    def _simulate(self, plan: Plan) -> tuple[Sequence[GroupSpan], np.ndarray]:
        # In the order of production, whatever the plan's.
        contended = replace(plan, contention=self._gamma)
        profile = self._reordered(plan)
        model = slower(self.model, self._waiting)
        timeline = simulate(profile, contended, model)
        times, work = [0.0], [0.0]
        for index, stage in enumerate(timeline.stages):
            rate = 1.0
            if index > 0:
                num_bytes = effective_group_bytes(profile, plan)[index - 1]
                threads = plan.groups[index - 1].num_threads
                rate = float(model.mean_compute_rate(num_bytes, threads))
            for seconds, speed in (
                (stage.overlap_seconds, rate),
                (stage.residual_compute_seconds, 1.0),
                (stage.residual_communication_seconds, 0.0),
            ):
                times.append(times[-1] + seconds)
                work.append(work[-1] + seconds * speed)
        compute = profile.compute_seconds
        moving = np.concatenate([[True], np.diff(work) > 0])
        produced = np.interp(np.cumsum(compute), np.array(work)[moving], np.array(times)[moving])
        return timeline.groups, produced

    def _reordered(self, plan: Plan) -> BackwardProfile:
        """Returns the profile in the plan's order; each tensor keeps its time."""
        by_name = {tensor.name: tensor for tensor in self.profile.tensors}
        tensors = [by_name[name] for name in plan.tensor_names]
        return BackwardProfile.from_arrays(
            [t.num_bytes for t in tensors],
            [t.compute_seconds for t in tensors],
            [t.name for t in tensors],
            density=[t.density for t in tensors],
        )


def linked(factor: float) -> ContentionModel:
    """Returns the model with links scaled by a factor."""
    rates = (
        (factor * gamma1, factor * gamma2, gamma3)
        for gamma1, gamma2, gamma3 in (MODEL.overlapped, MODEL.exclusive)
    )
    overlapped, exclusive = rates
    return replace(MODEL, overlapped=overlapped, exclusive=exclusive)


def mover(start_ns: int, pace: float) -> Callable[[int], int]:
    """Returns a function that scales times since `start_ns` by a factor."""
    return lambda when_ns: start_ns + round((when_ns - start_ns) * pace)


def moved_records(
    records: Iterable[AllReduceRecord], moved: Callable[[int], int]
) -> tuple[AllReduceRecord, ...]:
    """Returns the all-reduces at other times."""
    return tuple(
        replace(
            record,
            enqueued_ns=moved(record.enqueued_ns),
            started_ns=moved(record.started_ns),
            first_byte_ns=moved(record.first_byte_ns),
            finished_ns=moved(record.finished_ns),
        )
        for record in records
    )


def at_pace(seen: TrialResult, pace: float) -> TrialResult:
    """Returns the result with all its times scaled by a factor."""
    if pace == 1:
        return seen
    moved = mover(seen.called_ns[0], pace)
    assert seen.production is not None
    production = replace(
        seen.production,
        produced_ns=np.array(
            [moved(produced) for produced in seen.production.produced_ns.tolist()]
        ),
        backward_start_ns=moved(seen.production.backward_start_ns),
    )
    return replace(
        seen,
        production=production,
        records=tuple(
            replace(record, cpu_ns=round(record.cpu_ns * pace))
            for record in moved_records(seen.records, moved)
        ),
        called_ns=(seen.called_ns[0], moved(seen.called_ns[1])),
    )


def core_ns(model: CostModel, num_bytes: int) -> int:
    """Returns the core time of one core's lanes for an all-reduce; 0 without a CPU-share model."""
    if not isinstance(model, ProcessorModel):
        return 0
    return round(model.work_per_byte * float(model.transmitted_bytes(num_bytes)) * 1e9)


def slower(model: CostModel, waiting: float) -> CostModel:
    """Returns the model with additional waiting."""
    if not waiting:
        return model
    assert isinstance(model, ContentionModel | ProcessorModel)
    return replace(model, waiting=model.waiting + waiting)


def drive(
    machine: Machine,
    strategy: strategies.Strategy | str = "libra",
    budget: Budget | None = None,
    order: Sequence[int] | None = None,
    traceable: bool = True,
    **options: Any,
) -> tuple[TuningResult, list[Trial]]:
    """Runs a tuner to its end, as a session does."""
    # A `ContentionModel` has no lanes that take core time.
    options = {"leaves_records": not isinstance(machine.model, ContentionModel)} | options
    tuning = tune(
        machine.specs(order),
        strategies.resolve(strategy),
        NUM_WORKERS,
        budget or Budget(),
        clock=lambda: machine.seconds,
        **options,
    )
    experiments: list[Trial] = []
    observation: TrialResult | None = None
    while True:
        try:
            experiment = tuning.send(observation)
        except StopIteration as finished:
            return finished.value, experiments
        experiments.append(experiment)
        seen = machine.run(experiment.plan)
        observation = seen
        if not experiment.traced:
            observation = replace(seen, production=None)
        elif not traceable:
            problem = "busy: somebody else is profiling"
            observation = replace(seen, production=None, problem=problem)
