"""Observations: results of the trials so far, and what a fit needs of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tf_libra.autotune import density
from tf_libra.autotune.sampling_plans import TensorSpec, plan_with_row_bytes, with_row_bytes
from tf_libra.autotune.step_times import StepTimes, TimedStep, step_times
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.profiling.gradient_timing import MeasuredProfile, StepProduction, measured_profile
from tf_libra.profiling.overlap_samples import exclude_waiting
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# Relative slowdown of a traced step from which on its times are corrected.
_MIN_SLOWDOWN = 0.2
# Largest ratio that is a machine's slowdown; a larger one is a wait for input data.
_MAX_SLOWDOWN = 2.0
# Least ratio of all-reduces that count as of the same size.
_SAME_SIZE = 0.9


@dataclass(frozen=True, eq=False)
class ProfiledStep:
    """Traced step.

    Attributes:
        plan: plan of the step.
        production: production times of gradients.
        records: executed all-reduces.
        called_ns: start of the step's call, nanoseconds since the epoch.
    """

    plan: Plan
    production: StepProduction
    records: tuple[AllReduceRecord, ...]
    called_ns: int

    @property
    def before_ns(self) -> int:
        """Time from the step's start to the start of backward, which is the same for all plans."""
        return self.production.backward_start_ns - self.called_ns

    def start_of_backward(self, timed: Sequence[StepTimes]) -> float | None:
        """Returns when backward starts in untraced steps, in seconds; None if they do not show it.

        Tracing slows the forward pass and backward alike: the first gradients show how much. No
        all-reduce delays them in a step that communicates after backward, or under the same plan.

        Args:
            timed: steady-state times of plans.
        """
        produced_ns = dict(
            zip(self.production.names, self.production.produced_ns.tolist(), strict=True)
        )
        starts = []
        for step in timed:
            if not self.plan.after_backward and step.plan.fingerprint != self.plan.fingerprint:
                continue
            first = step.plan.groups[0]
            names = step.plan.tensor_names[first.start : first.stop]
            ready_ns = max((produced_ns.get(name, 0) for name in names), default=0) - self.called_ns
            if step.ready[0] > 0 and ready_ns > self.before_ns:
                starts.append(float(step.ready[0]) * self.before_ns / ready_ns)
        return float(np.median(starts)) if starts else None

    def scaled(self, factor: float) -> "ProfiledStep":
        """Returns the step with all its times scaled by a factor."""

        def moved(time_ns: int) -> int:
            return self.called_ns + round(factor * (time_ns - self.called_ns))

        def all_moved(times_ns: np.ndarray) -> np.ndarray:
            return self.called_ns + np.round((times_ns - self.called_ns) * factor).astype(np.int64)

        used_ns = self.production.used_ns
        production = replace(
            self.production,
            produced_ns=all_moved(self.production.produced_ns),
            backward_start_ns=moved(self.production.backward_start_ns),
            used_ns=None if used_ns is None else all_moved(used_ns),
        )
        records = tuple(
            replace(
                record,
                enqueued_ns=moved(record.enqueued_ns),
                started_ns=moved(record.started_ns),
                first_byte_ns=moved(record.first_byte_ns),
                finished_ns=moved(record.finished_ns),
            )
            for record in self.records
        )
        return replace(self, production=production, records=records)


@dataclass
class Observations:
    """Results of the trials so far.

    Attributes:
        after_backward: traced steps that communicate after backward.
        overlapped: traced steps whose communication overlaps with backward.
        timed: untraced steps whose communication overlaps with backward.
        concurrent: untraced steps with concurrent all-reduces on several streams.
        problems: reasons why steps could not be traced, with their number.
    """

    after_backward: list[ProfiledStep] = field(default_factory=list)
    overlapped: list[ProfiledStep] = field(default_factory=list)
    timed: list[TimedStep] = field(default_factory=list)
    concurrent: list[TimedStep] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)

    def record(self, trial: Trial, result: TrialResult) -> None:
        """Records the result of a trial."""
        if trial.is_first:
            return
        if not trial.traced:
            # Plans of MEASURE are in tracing order, since there is no profile yet.
            if trial.phase is not Phase.MEASURE:
                step = TimedStep(trial.plan, result.called_ns, result.records)
                (self.timed if trial.plan.num_streams == 1 else self.concurrent).append(step)
            return
        if result.production is None:
            self.problems[result.problem] = self.problems.get(result.problem, 0) + 1
            return
        traced = ProfiledStep(trial.plan, result.production, result.records, result.called_ns[0])
        if trial.phase is Phase.MEASURE:
            self.after_backward.append(traced)
        elif traced.records:  # none: the step only accumulated gradients
            self.overlapped.append(traced)

    def problem_notes(self) -> list[str]:
        """Returns a note on each problem."""
        return [f"{problem} ({count} times)" for problem, count in self.problems.items()]

    def profile(
        self, tensors: Sequence[TensorSpec], order: Sequence[str] | None = None
    ) -> MeasuredProfile | None:
        """Returns the measured backward computation and densities.

        None, and adds a problem, if unknown.

        Args:
            tensors: tensors of the step.
            order: tensor names in the order of existing plans; None for the order of production.
        """
        tensors = with_row_bytes(tensors, self.row_bytes())
        sizes: Mapping[str, int] = {tensor.name: tensor.num_bytes for tensor in tensors}
        dtypes = {tensor.name: tensor.dtype for tensor in tensors}
        steps = [step.production for step in self.after_backward]
        try:
            measured = measured_profile(steps, sizes, min_steps=1, dtypes=dtypes, order=order)
        except ValueError as problem:  # training continues without a profile
            self.problems[str(problem)] = 1
            return None
        found = density.densities(self._records(), self._omitted_cost())
        return replace(measured, profile=measured.profile.with_density(found))

    def effective(self, records: Sequence[AllReduceRecord]) -> tuple[AllReduceRecord, ...]:
        """Returns the records with the bytes that count, as ranks leave out zero blocks."""
        cost = self._omitted_cost()
        return tuple(density.effective(record, cost) for record in records)

    def _omitted_cost(self) -> float:
        records = [record for step in self.after_backward for record in step.records]
        return density.omitted_cost(exclude_waiting(records))

    def _records(self) -> list[AllReduceRecord]:
        """Returns the records of all steps under plans of one stream."""
        traced = (step.records for step in (*self.after_backward, *self.overlapped))
        timed = (step.records for step in self.timed)
        return [record for of_step in (*traced, *timed) for record in of_step]

    def row_bytes(self) -> dict[str, int]:
        """Returns the median bytes of all-reduces of one tensor after backward, by its name."""
        by_name: dict[str, list[int]] = {}
        for step in self.after_backward:
            for record in step.records:
                if len(record.tensor_names) == 1:
                    by_name.setdefault(record.tensor_names[0], []).append(record.num_bytes)
        return {name: round(float(np.median(sizes))) for name, sizes in by_name.items()}

    def bytes_per_second(self, num_workers: int) -> float | None:
        """Returns a worker's send rate in the largest all-reduces after backward; None if unknown.

        Only all-reduces with the fewest threads count. The rate of large all-reduces depends on the
        network and hardly on startup.
        """
        all_records = self.effective([r for step in self.after_backward for r in step.records])
        fewest = min((record.num_threads for record in all_records), default=0)
        records = [
            record
            for record in exclude_waiting(all_records)
            if record.num_threads == fewest and record.num_bytes and record.seconds > 0
        ]
        if not records or num_workers < 2:
            return None
        largest = max(record.num_bytes for record in records)
        # Numbers of zeros, and so of the bytes that count, change from step to step.
        rates = [r.num_bytes / r.seconds for r in records if r.num_bytes >= _SAME_SIZE * largest]
        return 2 * (num_workers - 1) / num_workers * float(np.median(rates))

    def core_seconds_per_byte(self, num_workers: int) -> float:
        """Returns the core seconds of a worker's lanes per byte of c_hat; 0 if unknown.

        Unlike the durations of all-reduces, core seconds hardly depend on what else the cores do.
        """
        records = self.effective(self._records())
        sent = 2 * (num_workers - 1) / num_workers * sum(record.num_bytes for record in records)
        return sum(record.cpu_ns for record in records) * 1e-9 / sent if sent else 0.0

    def before_seconds(self, timed: Sequence[StepTimes] = ()) -> float | None:
        """Returns the time from a step's start to the start of backward; None without traces.

        Args:
            timed: steady-state times of plans. When their first groups are ready shows how much
                slower the traced steps were.
        """
        traced = (*self.after_backward, *self.overlapped)
        known = [step.start_of_backward(timed) for step in traced]
        starts = [start for start in known if start is not None]
        starts = starts or [step.before_ns * 1e-9 for step in traced]
        return max(float(np.median(starts)), 0.0) if starts else None

    def at_steady_speed(self) -> "Observations":
        """Returns the observations with traced steps scaled to the machine's median speed.

        The time before backward shows a step's speed, unless the step waited for its data there.
        """
        median = self.before_seconds()
        if not median:
            return self

        def scaled(step: ProfiledStep) -> ProfiledStep:
            slowdown = step.before_ns * 1e-9 / median
            is_plausible = 1 / _MAX_SLOWDOWN <= slowdown <= _MAX_SLOWDOWN
            if is_plausible and abs(slowdown - 1) > _MIN_SLOWDOWN:
                return step.scaled(1 / slowdown)
            return step

        return replace(
            self,
            after_backward=[scaled(step) for step in self.after_backward],
            overlapped=[scaled(step) for step in self.overlapped],
        )

    def without(self, fingerprint: str) -> list[ProfiledStep]:
        """Returns the traced overlapped steps of all plans but one, which tests a model.

        Whole plans are held out, since the steps of one plan are too similar.
        """
        return [step for step in self.overlapped if step.plan.fingerprint != fingerprint]

    def exclusive_steps(self) -> list[StepTimes]:
        """Returns the traced steps of every plan that communicates after backward."""
        row_bytes = self.row_bytes()
        return step_times(
            [
                TimedStep(
                    plan_with_row_bytes(step.plan, row_bytes),
                    (step.called_ns, max(record.finished_ns for record in step.records)),
                    step.records,
                )
                for step in self.after_backward
                if step.records
            ]
        )

    def steady_state_steps(self) -> list[StepTimes]:
        """Returns the steady-state step of every plan with untraced records."""
        return step_times(self.timed)
