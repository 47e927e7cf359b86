"""Observations of the steps so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tf_libra.autotune.phase import Phase
from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.autotune.step_times import StepTimes, TimedStep, step_times
from tf_libra.autotune.trial import Trial, TrialResult
from tf_libra.profiling.gradient_timing import MeasuredProfile, StepProduction, measured_profile
from tf_libra.profiling.overlap_samples import without_waiting
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# A traced step's own pace counts where it differs by so much from the usual.
_NOTABLE = 0.2
# And by so many times at most: no machine's pace differs by more, but waiting for data does.
_MOST_APART = 2.0


@dataclass(frozen=True, eq=False)
class ProfiledStep:
    """A step that could be traced.

    Attributes:
        plan: what it ran under.
        production: when gradients were produced.
        records: the all-reduces that were executed.
        called_ns: when the step was called, nanoseconds since the epoch.
    """

    plan: Plan
    production: StepProduction
    records: tuple[AllReduceRecord, ...]
    called_ns: int

    @property
    def before_ns(self) -> int:
        """From its start to the start of backward, which no plan changes."""
        return self.production.backward_start_ns - self.called_ns

    @property
    def first_ready_ns(self) -> int:
        """From its start until its first group was ready; 0 where that has no bytes."""
        first = [one.enqueued_ns for one in self.records if one.group == 0]
        return first[0] - self.called_ns if first else 0

    def at_pace(self, pace: float) -> "ProfiledStep":
        """As if all in it had taken `pace` times as long."""

        def moved(when_ns: int) -> int:
            return self.called_ns + round(pace * (when_ns - self.called_ns))

        produced = (self.production.produced_ns - self.called_ns) * pace
        production = replace(
            self.production,
            produced_ns=self.called_ns + np.round(produced).astype(np.int64),
            backward_start_ns=moved(self.production.backward_start_ns),
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
    """The observations of the steps so far.

    Attributes:
        after_backward: traced steps that communicate after backward.
        overlapped: traced steps that communicate concurrently with backward.
        timed: untraced steps that communicate concurrently with backward.
        at_once: untraced steps whose all-reduces ran concurrently on several streams.
        problems: why steps could not be traced, and how many.
    """

    after_backward: list[ProfiledStep] = field(default_factory=list)
    overlapped: list[ProfiledStep] = field(default_factory=list)
    timed: list[TimedStep] = field(default_factory=list)
    at_once: list[TimedStep] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)

    def note(self, experiment: Trial, observation: TrialResult) -> None:
        """Keeps what an experiment has shown."""
        if experiment.is_first:
            return
        if not experiment.traced:
            # Before there is a profile, plans are in the order of tracing.
            if experiment.phase is not Phase.MEASURE:
                called_ns, records = observation.called_ns, observation.records
                step = TimedStep(experiment.plan, called_ns, records)
                (self.timed if experiment.plan.num_streams == 1 else self.at_once).append(step)
            return
        if observation.production is None:
            problem = observation.problem
            self.problems[problem] = self.problems.get(problem, 0) + 1
            return
        traced = ProfiledStep(
            experiment.plan, observation.production, observation.records, observation.called_ns[0]
        )
        if experiment.phase is Phase.MEASURE:
            self.after_backward.append(traced)
        elif traced.records:  # else the step has only accumulated gradients
            self.overlapped.append(traced)

    def notes(self) -> list[str]:
        """The problems in words."""
        return [f"{problem} ({times} times)" for problem, times in self.problems.items()]

    def profile(
        self, tensors: Sequence[TensorSpec], order: Sequence[str] | None = None
    ) -> MeasuredProfile | None:
        """Returns the measured backward computation; None, with a new problem noted, if unknown.

        Args:
            tensors: of the step.
            order: of tensors' names, which plans have been made in; None: that of production.
        """
        sizes: Mapping[str, int] = {tensor.name: tensor.num_bytes for tensor in tensors}
        dtypes = {tensor.name: tensor.dtype for tensor in tensors}
        steps = [step.production for step in self.after_backward]
        try:
            return measured_profile(steps, sizes, min_steps=1, dtypes=dtypes, order=order)
        except ValueError as problem:  # no reason to end the training
            self.problems[str(problem)] = 1
            return None

    def bytes_per_second(self, num_workers: int) -> float | None:
        """Returns a worker's rate in the largest all-reduces after backward; None without any.

        Only steps with the fewest threads count, which are measured first. The rate of all-reduces
        as large as these depends on the network, and hardly on startup.
        """
        of_first = [
            record
            for step in self.after_backward
            if step.plan.fingerprint == self.after_backward[0].plan.fingerprint
            for record in step.records
        ]
        records = [one for one in without_waiting(of_first) if one.num_bytes and one.seconds > 0]
        if not records or num_workers < 2:
            return None
        largest = max(record.num_bytes for record in records)
        seconds = [record.seconds for record in records if record.num_bytes == largest]
        return 2 * (num_workers - 1) / num_workers * largest / float(np.median(seconds))

    def before_seconds(self, usual: Sequence[StepTimes] = ()) -> float | None:
        """From a step's start to the start of backward; None where no step was traced.

        Args:
            usual: untraced steps of plans that also have traced steps: when their first groups are
                ready shows the cost of tracing, and the pace of the traced steps.
        """
        ready = {step.plan.fingerprint: float(step.ready[0]) for step in usual}
        starts = [
            step.before_ns * 1e-9 * ready[step.plan.fingerprint] / traced
            for step in self.overlapped
            if step.plan.fingerprint in ready
            and (traced := step.first_ready_ns * 1e-9) > step.before_ns * 1e-9
        ]
        if not starts:
            starts = [step.before_ns * 1e-9 for step in (*self.after_backward, *self.overlapped)]
        return max(float(np.median(starts)), 0.0) if starts else None

    def at_usual_pace(self) -> "Observations":
        """The same, where traced steps on a machine slower or faster for a while are as the others.

        What a step takes before backward tells its pace, unless it waited for its data there.
        """
        usual = self.before_seconds()
        if not usual:
            return self

        def paced(step: ProfiledStep) -> ProfiledStep:
            ratio = step.before_ns * 1e-9 / usual
            is_pace = 1 / _MOST_APART <= ratio <= _MOST_APART
            return step.at_pace(1 / ratio) if is_pace and abs(ratio - 1) > _NOTABLE else step

        return replace(
            self,
            after_backward=[paced(step) for step in self.after_backward],
            overlapped=[paced(step) for step in self.overlapped],
        )

    def without(self, fingerprint: str) -> list[ProfiledStep]:
        """Traced overlapped steps but for those under one plan.

        A model is tested on whole plans that it was not fitted to: steps of one plan are too alike.
        """
        return [step for step in self.overlapped if step.plan.fingerprint != fingerprint]

    def usual_steps(self) -> list[StepTimes]:
        """The usual step of every plan of which all-reduces were recorded without a trace."""
        return step_times(self.timed)
