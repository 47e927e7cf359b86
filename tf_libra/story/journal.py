"""What is known of one training function, told to its user and kept for the next job.

The session says what happens, in the order in which it happens; nothing here drives anything.
Rank 0 writes files; the other ranks only warn.
"""

import atexit
import logging
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tf_libra import logs
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.options import Options
from tf_libra.profiling.samples import MeasuredTimeline
from tf_libra.records import cache
from tf_libra.records.recorder import Recorder
from tf_libra.records.values import PlanRecord
from tf_libra.story import progress
from tf_libra.story.summary import describe, fit_line, plan_table, summary_line
from tf_libra.tuning import Observation, Phase, TensorSpec, Tuned

_REMEMBERED_STEPS = 200


@dataclass
class Journal:
    """The story of one training function so far.

    Attributes:
        phase: where in its life it is.
        plan: what it runs under; None before a plan is in force.
        profile: measured backward computation; None where none was measured.
        cost_model: fitted contention model; likewise.
        tuned: all that tuning came to, on rank 0; None before, and for plans given or kept.
        timelines: measured steps under the plan.
        remarks: what a reader should know, in the order in which it was found.
    """

    options: Options
    rank: int = 0
    log: logging.Logger = field(default_factory=lambda: logs.logger(rank=0))

    phase: Phase = field(default=Phase.TRACE, init=False)
    plan: Plan | None = field(default=None, init=False)
    profile: BackwardProfile | None = field(default=None, init=False)
    cost_model: ContentionModel | None = field(default=None, init=False)
    tuned: Tuned | None = field(default=None, init=False)
    timelines: list[MeasuredTimeline] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._seconds: dict[Phase, deque[float]] = {}
        self._key = ""
        self._recorder: Recorder | None = None
        self._function = ""
        self._closed = False
        self._progress = progress.Progress(self.log)
        self.remarks: list[str] = []
        self.num_steps: Counter[Phase] = Counter()

    def met(self, rank: int) -> None:
        """The other ranks are known, and with them who speaks."""
        self.rank, self.log = rank, logs.logger(rank)
        if rank == 0:
            logs.warn_of_unknown_level(self.log)

    def busy(self, phase: Phase) -> None:
        """A phase begins that is no step, and may take a while."""
        self._show(phase.value)

    def stopped(self) -> None:
        """An error ends the training, as far as is known here."""
        self._progress.end()

    def record(self, function: str) -> None:
        """The function's name is known; what happens is also written if there is a `logdir`."""
        if self._closed or self._function == function:  # a first step that failed is tried again
            return
        self._function = function
        atexit.register(self.close)
        if self.options.logdir is not None:
            self._recorder = Recorder(self.options.logdir, self.rank, function, self.log)

    def left_to_horovod(self, gradients: Mapping[str, str], anything_else: bool) -> None:
        """Horovod reduces these gradients as the script says: reasons by name.

        Args:
            gradients: at least one.
            anything_else: whether there are others, that can be planned.
        """
        (name, why), *others = gradients.items()
        text = f"the gradient of {name!r}{f' and {len(others)} more' if others else ''}"
        text = f"Horovod reduces {text} as the script says ({why})"
        if anything_else:
            self._remark(text, logging.INFO)
        else:
            unused = "" if self.options.plan is None else ", and the plan given is not used"
            self._remark(f"{text}: there is nothing to plan, the step runs as it is{unused}")

    def copied(self, names: Sequence[str], num_compared: int) -> None:
        """Variables that differed have got rank 0's values; one rank says so."""
        if self.rank != 0:
            return
        first, *others = names
        self.log.info(
            "variables: %d of the %d that training keeps equal differed between the ranks (%r%s);"
            " rank 0's values were copied to all (broadcast_variables=False refuses instead)",
            len(names),
            num_compared,
            first,
            " and others" if others else "",
        )

    def reduced_nothing(self) -> None:
        """A step has all-reduced nothing, though the graph has all that the plan asks for."""
        text = (
            "not every step all-reduces its gradients, as with backward_passes_per_step; the plan"
            " is followed in the steps that do"
        )
        if text not in self.remarks:
            self._remark(text, logging.INFO)

    def _remark(self, text: str, level: int = logging.WARNING) -> None:
        """Says something now, and whenever it is asked to explain."""
        self.remarks.append(text)
        self.log.log(level, "%s", text)

    def entered(self, phase: Phase, step: int) -> None:
        """A step begins in `phase`, which may be a new one."""
        begins = self.phase is not phase or step == 1
        if begins:
            self.log.info("%s: from step %d on", phase.value, step)
        self._show(f"{phase.value}: step {step} of at most {self.options.budget.max_steps}", begins)
        self.phase = phase

    def _show(self, text: str, anew: bool = True) -> None:
        if self.rank == 0 and self.options.progress:
            self._progress.show(text, anew)

    def concluded(self, tuned: Tuned) -> cache.Kept:
        """Tuning is over, on rank 0. Returns what the next job could use, and keeps it."""
        self.tuned = tuned
        profile = None if tuned.profile is None else tuned.profile.profile
        kept = cache.Kept(tuned.plan, profile, tuned.cost_model)
        # What a short budget or a busy profiler led to is not to be repeated for ever.
        if tuned.is_complete:
            self._store(kept)
        return kept

    def in_force(self, kept: cache.Kept, how: str, step: int) -> None:
        """A plan is in force from `step` on; `how` says where it comes from."""
        self._progress.end()
        self._log_conclusion()
        self.profile, self.cost_model, self.plan = kept.profile, kept.cost_model, kept.plan
        self.phase = Phase.RUN
        if self.rank == 0 and not self._closed:
            self._write_logdir(kept)
        if self._recorder is not None:
            self._recorder.in_force(
                PlanRecord.of(
                    function=self._function,
                    step=step,
                    origin=how,
                    plan=kept.plan,
                    strategy=self.options.strategy,
                    profile=kept.profile,
                    cost_model=kept.cost_model,
                    tuned=self.tuned,
                    baseline_seconds=tuple(self._seconds.get(Phase.MEASURE, ())),
                )
            )
        self.log.info(
            "run: plan %s (%s) is in force from step %d on\n%s",
            kept.plan.short_id,
            how,
            step,
            plan_table(kept.plan, kept.profile, kept.cost_model),
        )

    def clocks(self, exchanges: tuple[tuple[int, int], ...]) -> None:
        """All ranks have exchanged messages, for their clocks to be compared."""
        if self._recorder is not None:
            self._recorder.clocks(exchanges)

    def took(self, step: int, seconds: float, usual: bool, num_steps: int = 1) -> None:
        """Steps took so long each; `usual` unless it was a plan's first or traced."""
        self.num_steps[self.phase] += num_steps
        if usual:
            self._seconds.setdefault(self.phase, deque(maxlen=_REMEMBERED_STEPS)).append(seconds)
        if self._recorder is not None:
            self._recorder.took(step, seconds, usual)

    @property
    def wants_check(self) -> bool:
        """Whether another step under the plan may be traced, for what is written of it."""
        return self._recorder is not None and self._recorder.wants_check

    @property
    def wants_steps(self) -> bool:
        """Whether `executed` does anything with a step that was not traced."""
        return self._recorder is not None

    def executed(
        self,
        step: int,
        called_ns: tuple[int, int],
        all_reduces: Sequence[AllReduceRecord],
        observation: Observation | None = None,
        timeline: MeasuredTimeline | None = None,
    ) -> None:
        """A step under the plan has run; `observation` and `timeline` where it was traced."""
        if timeline is not None:
            self.timelines.append(timeline)
            del self.timelines[:-_REMEMBERED_STEPS]
        if self._recorder is not None:
            self._recorder.executed(step, called_ns, all_reduces, observation, timeline)

    def checked(self) -> None:
        """No more steps under the plan will be observed."""
        if not self.timelines:
            return
        predicted = None if self.plan is None else self.plan.predicted_seconds
        measured = statistics.median(t.backward_seconds for t in self.timelines)
        self.log.info(
            "run: backward takes %.1f ms in the median of %d steps; predicted: %s",
            measured * 1e3,
            len(self.timelines),
            "nothing" if predicted is None else f"{predicted * 1e3:.1f} ms",
        )

    @property
    def function(self) -> str:
        """The training function's name; empty before it is known."""
        return self._function

    def close(self) -> None:
        """Says how it went, and writes nothing down any more; at the end of the process anyway."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._progress.end()
        if self.rank == 0 and self.num_steps.total() > 0:
            self.log.info("%s", summary_line(self))
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def explain(self) -> str:
        """What is known so far, as text of at most 100 columns."""
        return describe(self)

    def median_step_seconds(self, phase: Phase) -> float | None:
        """Median wall-clock seconds of a phase's steps that were neither a plan's first nor traced.

        In MEASURE these are the steps under one all-reduce after backward, in RUN those under the
        plan.
        """
        seconds = self._seconds.get(phase)
        return statistics.median(seconds) if seconds else None

    def load(
        self,
        tensors: Sequence[TensorSpec],
        num_workers: int,
        circumstances: Mapping[str, str],
        check: Callable[[Plan], None],
    ) -> cache.Kept | None:
        """What an earlier job of the same kind has kept; None if there is nothing to use.

        Args:
            tensors: in backward order.
            num_workers: world size.
            circumstances: what else must be the same.
            check: raises `ValueError` for a plan that cannot be used here.
        """
        self._key = cache.fingerprint(
            tensors, self.options.strategy, num_workers, dict(circumstances)
        )
        if self.options.cache_dir is None:
            return None
        try:
            kept = cache.load(self.options.cache_dir, self._key)
            if kept is not None:
                check(kept.plan)
        except (OSError, ValueError) as error:
            self.log.warning("cache_dir: what is kept cannot be used, measuring anew: %s", error)
            return None
        return kept

    def _store(self, kept: cache.Kept) -> None:
        try:
            if self.options.cache_dir is not None:
                cache.store(self.options.cache_dir, self._key, kept)
        except OSError as error:  # no reason to end the training
            self.log.warning("cache_dir: nothing could be kept: %s", error)

    def _write_logdir(self, kept: cache.Kept) -> None:
        try:
            if self.options.logdir is not None:
                self.options.logdir.mkdir(parents=True, exist_ok=True)
                for name, text in kept.to_json().items():
                    if text is not None:
                        (self.options.logdir / f"{name}.json").write_text(text)
        except OSError as error:
            self.log.warning("logdir: not everything could be written: %s", error)

    def _log_conclusion(self) -> None:
        tuned = self.tuned
        if tuned is None:
            return
        if tuned.cost_model is not None and tuned.fit is not None:
            self.log.info("fit: %s", fit_line(tuned))
        for note in tuned.notes:
            self.log.warning("note: %s", note)
        self.log.info(
            "plan: %s made %d group(s) of %d tensors",
            tuned.plan.strategy,
            len(tuned.plan.groups),
            len(tuned.plan.tensor_names),
        )
