"""Tells what happens to one training function: to log, terminal, journal and files.

The session says what happens, in the order in which it happens; nothing here drives anything.
Rank 0 writes files; the other ranks only warn.
"""

import atexit
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tf_libra.autotune import (
    CALLS_PER_LOOK,
    DOSE,
    Drift,
    DriftVerdict,
    Phase,
    PlanSource,
    TrialResult,
    TuningResult,
)
from tf_libra.config import Options
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.cost_model.fit_quality import written
from tf_libra.internal import formatting, log_utils
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting import burst_files, pipeline_files
from tf_libra.reporting.logdir_files import documents, write
from tf_libra.reporting.progress_line import ProgressLine
from tf_libra.reporting.records.burst import BurstRecord
from tf_libra.reporting.records.graph_export import GroupNode, step_graph
from tf_libra.reporting.records.pipeline import PipelineRecord
from tf_libra.reporting.records.plan import PlanRecord, versions
from tf_libra.reporting.records.recorder import Recorder
from tf_libra.reporting.run_history import RunHistory
from tf_libra.reporting.text_report import (
    describe,
    fit_line,
    plan_table,
    summary_line,
    why_another_plan,
)
from tf_libra.simulation.viz.pipeline_gantt import Bar
from tf_libra.specs.background_stats import BackgroundStats
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan
from tf_libra.specs.scaling_profile import ScalingProfile
from tf_libra.specs.telemetry import AllReduceRecord


class RunReporter:
    """The report of one training function, as far as it has got.

    Attributes:
        log: where this rank speaks.
        is_closed: whether the report has ended, and nothing is written any more.
    """

    def __init__(self, options: Options) -> None:
        """Begins an empty report."""
        self.log = log_utils.logger(rank=0)
        self._options = options
        self._rank = 0
        self._function = ""
        self.is_closed = False
        self._history = RunHistory(options.backend.name, options.strategy.name)
        self._progress = ProgressLine(self.log)
        self._recorder: Recorder | None = None

    def on_join(self, rank: int, options: Options) -> None:
        """Records the rank, which chooses the logger, and the options once all ranks have met."""
        self._rank, self._options, self.log = rank, options, log_utils.logger(rank)
        self._history.set_engine(options.backend.name)
        if rank == 0:
            log_utils.warn_of_unknown_level(self.log)

    def on_function(self, function: str) -> None:
        """The function's name is known; what happens is also written if there is a `logdir`."""
        if self.is_closed or self._function == function:  # a first step that failed is repeated
            return
        self._function = function
        self._history.set_function(function)
        atexit.register(self.close)
        step_interrupts().at_the_end(self.close)
        if self._options.logdir is not None:
            self._recorder = Recorder(
                self._options.logdir,
                self._rank,
                function,
                self.log,
                self._options.tuning.max_steps,
            )

    def on_activity(self, phase: Phase) -> None:
        """A phase begins that is no step, and may take a while."""
        self._show(phase.value)

    def on_idle(self) -> None:
        """An error ends the training, as far as is known here."""
        self._progress.end()

    def on_unplanned_gradients(
        self, to: str, gradients: Mapping[str, str], anything_else: bool
    ) -> None:
        """Others reduce these gradients as the script says: reasons by name.

        Args:
            to: who does.
            gradients: at least one.
            anything_else: whether there are others, that can be planned.
        """
        (name, why), *others = gradients.items()
        text = f"the gradient of {name!r}{f' and {len(others)} more' if others else ''}"
        text = f"{to} reduces {text} as the script says ({why})"
        if anything_else:
            self._remark(text, logging.INFO)
        else:
            unused = "" if self._options.plan is None else ", and the plan given is not used"
            self._remark(f"{text}: there is nothing to plan, the step runs as it is{unused}")

    def on_variables_broadcast(self, names: Sequence[str], num_compared: int) -> None:
        """Variables that differed have got rank 0's values; one rank says so."""
        if self._rank != 0:
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

    def on_variables_differ(self, names: Sequence[str]) -> None:
        """Log on one rank which buffers differ between the ranks."""
        if self._rank == 0:
            self._remark(
                f"{len(names)} variables that no gradient trains and the step does not write, such"
                " as statistics of a frozen layer, differ between the ranks"
                f" ({formatting.listed(names)}), and so does what the ranks compute of the same"
                " input."
                " If rank 0 has loaded them, broadcast them before the first step, by"
                " tf_libra.keras.BroadcastVariables() in fit, or hvd.broadcast_variables; name"
                " variables that are meant to be each rank's own in local_variables"
            )

    def on_step_without_reductions(self) -> None:
        """A step has all-reduced nothing, though the graph has all that the plan asks for."""
        self._remark(
            "not every step all-reduces its gradients, as with backward_passes_per_step; the plan"
            " is followed in the steps that do",
            logging.INFO,
        )

    def _remark(self, text: str, level: int = logging.WARNING) -> None:
        """Logs a remark once, and keeps it for `explain`."""
        if self._history.add_remark(text):
            self.log.log(level, "%s", text)

    def on_step_begin(self, phase: Phase, step: int, again: bool = False) -> None:
        """Records a step's begin in `phase`, maybe a new one; `again` while a plan is active."""
        begins = self._history.enter_phase(phase, again) or step == 1
        if again:  # a few steps in a row, which `looked` has reported
            return
        if begins:
            self.log.info("%s: from step %d on", phase.value, step)
        most = self._options.tuning.max_steps
        self._show(f"{phase.value}: step {step} of at most {most}", begins)

    def on_drift_check(self, found: DriftVerdict, drift: Drift, step: int) -> None:
        """Steps since the last look were judged at this one."""
        measured, expected = drift.measured_seconds, drift.expected_seconds
        if (
            measured is None
            or expected is None
            or found in (DriftVerdict.NOTHING, DriftVerdict.STILL)
        ):
            return
        if self._recorder is not None:
            self._recorder.record_drift(
                step, measured, expected, is_back=found is DriftVerdict.PASSED
            )
        if found is DriftVerdict.DRIFT:
            self._say(
                f"drift: at step {step} steps take {formatting.time(measured)}, where"
                f" {formatting.time(expected)} were expected: plans are tried out again, {DOSE}"
                " steps"
                f" after every {CALLS_PER_LOOK} at most"
            )
        elif found is DriftVerdict.STALE:
            self._say(
                f"drift: at step {step} steps take {formatting.time(measured)}, where"
                f" {formatting.time(expected)} were expected of the plan that an earlier job has"
                " kept:"
                " this one tunes itself"
            )
        else:
            self._say(
                f"drift: at step {step} steps take {formatting.time(measured)} again, near the"
                f" {formatting.time(expected)} expected: the plan stays"
            )

    def _say(self, text: str) -> None:
        self._history.add_remark(text)
        self.log.warning("%s", text)

    def on_phase(self, phase: Phase) -> None:
        """A phase begins, before its first step."""
        self._history.enter_phase(phase)

    def _show(self, text: str, anew: bool = True) -> None:
        if self._rank == 0 and self._options.progress:
            self._progress.show(text, anew)

    def on_plan_activated(self, conclusion: TuningResult, origin: PlanSource, step: int) -> None:
        """Records that a plan is active from `step` on."""
        self._progress.end()
        if self._rank == 0 and origin is not PlanSource.GIVEN:
            self._tell_conclusion(conclusion)
        before = self._history.snapshot().conclusion
        self._history.enter_phase(Phase.RUN)
        self._history.set_plan(conclusion)
        if self._rank == 0 and not self.is_closed:
            self._write_logdir(conclusion)
        if self._recorder is not None:
            strategy = self._options.strategy
            self._recorder.record_plan(
                PlanRecord(
                    function=self._function,
                    step=step,
                    origin=origin.value,
                    strategy=strategy,
                    threads=strategy.allowed_threads,
                    conclusion=conclusion,
                    versions=versions(),
                )
            )
        plan, how = conclusion.plan, f"is in force from step {step} on"
        if before is not None and before.plan.fingerprint == plan.fingerprint:
            how = f"stays in force at step {step}: no other is clearly faster"
        elif before is not None:
            how += f", instead of {before.plan.short_id}"
        self.log.info(
            "run: plan %s (%s) %s\n%s", plan.short_id, origin.value, how, plan_table(conclusion)
        )

    def _tell_conclusion(self, conclusion: TuningResult) -> None:
        """Logs why the strategy differs, the race, the model's fit, the notes, and the plan."""
        plan = conclusion.plan
        if another := why_another_plan(replace(self._history.snapshot(), conclusion=conclusion)):
            self.log.info("plan: %s", another)
        raced = None if conclusion.race is None else conclusion.race.describe()
        if raced in conclusion.notes:
            self.log.warning("note: %s", raced)
        if conclusion.is_fitted:
            self.log.info("fit: %s", fit_line(conclusion))
        for note in conclusion.notes:
            if note != raced:
                self.log.warning("note: %s", note)
        self.log.info(
            "plan: %s made %d group(s) of %d tensors",
            plan.strategy,
            len(plan.groups),
            len(plan.tensor_names),
        )

    def _write_logdir(self, conclusion: TuningResult) -> None:
        if self._options.logdir is None:
            return
        model = conclusion.cost_model
        texts = {
            "plan": conclusion.plan.to_json(),
            "profile": None if conclusion.profile is None else conclusion.profile.to_json(),
            "cost_model": None if model is None else written(model, conclusion.evidence),
        }
        paths, told = documents(self._options.logdir, self._function, tuple(texts))
        if told:
            self._remark(told, logging.INFO)
        write({paths[name]: text for name, text in texts.items() if text is not None}, self.log)

    def on_graph(self, step: int, trace: Any, groups: Sequence[GroupNode]) -> None:
        """Records what the pass has made of a trace (a `FuncGraph`) under the active plan."""
        if self._recorder is not None:
            op = self._options.backend.op
            self._recorder.record_graph(step, lambda: step_graph(trace.as_graph_def(), groups, op))

    def on_clock_exchange(self, exchanges: tuple[tuple[int, int], ...]) -> None:
        """All ranks have exchanged messages, for their clocks to be compared."""
        if self._recorder is not None:
            self._recorder.add_clock_exchanges(exchanges)

    def on_step_end(self, step: int, seconds: float, usual: bool, num_steps: int = 1) -> None:
        """Steps took so long each; `usual` unless it was a plan's first or traced."""
        self._history.add_step(seconds, usual, num_steps)
        if self._recorder is not None:
            self._recorder.record_step_seconds(step, seconds, usual)

    def on_step_telemetry(
        self,
        step: int,
        called_ns: tuple[int, int],
        all_reduces: Sequence[AllReduceRecord],
        observation: TrialResult | None = None,
        timeline: MeasuredTimeline | None = None,
    ) -> None:
        """A step under the plan has run; `observation` and `timeline` where it was traced."""
        if timeline is not None:
            self._history.add_timeline(timeline)
        if self._recorder is not None:
            self._recorder.record_step(step, called_ns, all_reduces, observation, timeline)

    def on_plan_measured(self) -> None:
        """The first steps under the plan were observed."""
        facts = self._history.snapshot()
        measured = facts.median_backward_seconds()
        if measured is None:
            return
        predicted = None if facts.conclusion is None else facts.conclusion.plan.predicted_seconds
        self.log.info(
            "run: backward takes %s in the median of %d steps; predicted: %s",
            formatting.time(measured),
            len(facts.timelines),
            "nothing" if predicted is None else formatting.time(predicted),
        )

    def pipeline_planned(self, plan: PipelinePlan, layers: LayerGraph, cluster: Cluster) -> None:
        """Records that a pipeline is active, made of these measurements; rank 0 writes."""
        if self._writes_stages:
            assert self._options.logdir is not None
            made = (layers, cluster, plan)
            pipeline_files.write_planned(self._options.logdir, self._function, *made, self.log)

    def pipeline_measured(
        self,
        step: int,
        plan: PipelinePlan,
        layers: LayerGraph,
        cluster: Cluster,
        bars: tuple[Bar, ...],
        seconds: float,
    ) -> None:
        """Records when the ranks of a pipeline did what, up to this step; rank 0 writes."""
        if self._writes_stages:
            assert self._options.logdir is not None
            record = PipelineRecord(self._function, step, plan, layers, cluster, bars, seconds)
            pipeline_files.write_measured(self._options.logdir, record, self.log)
            if self._recorder is not None:
                self._recorder.record(record)

    def burst_planned(self, plan: BurstPlan, profile: ScalingProfile | None) -> None:
        """Records an active burst plan, made of these measurements unless given; rank 0 writes."""
        if self._writes_stages:
            assert self._options.logdir is not None
            made = (plan, profile)
            burst_files.write_planned(self._options.logdir, self._function, *made, self.log)

    def burst_measured(
        self,
        step: int,
        plan: BurstPlan,
        profile: ScalingProfile | None,
        bars: tuple[Bar, ...],
        seconds: float,
    ) -> None:
        """Records when the ranks under a burst plan did what, up to this step; rank 0 writes."""
        if self._writes_stages and self._recorder is not None:
            self._recorder.record(BurstRecord(self._function, step, plan, bars, seconds, profile))

    def background(self, got: BackgroundStats) -> None:
        """Records what a background job of this rank has got so far; every rank writes its own."""
        if self._recorder is not None:
            self._recorder.record_background(got)

    @property
    def _writes_stages(self) -> bool:
        return self._rank == 0 and self._options.logdir is not None and not self.is_closed

    def close(self) -> None:
        """Says how it went, and writes nothing down any more; at the end of the process anyway."""
        if self.is_closed:
            return
        self.is_closed = True
        atexit.unregister(self.close)
        if self._function:
            step_interrupts().not_at_the_end(self.close)
        self._progress.end()
        facts = self._history.snapshot()
        if self._rank == 0 and facts.num_steps:
            self.log.info("%s", summary_line(facts))
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def explain(self) -> str:
        """Returns what is known so far, as text of at most 100 columns."""
        return describe(self._history.snapshot())
