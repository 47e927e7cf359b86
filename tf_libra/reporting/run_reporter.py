"""Reports the events of one training function to log, terminal, history and files.

The reporter is a listener: the session calls it in the order of events, and no event depends on
it. Rank 0 logs and writes files; other ranks log warnings and write their own records.
"""

import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tf_libra.autotune import (
    RETUNE_STEPS_PER_CHECK,
    STEPS_PER_DRIFT_CHECK,
    DriftDetector,
    DriftVerdict,
    Phase,
    PlanSource,
    TrialResult,
    TuningResult,
)
from tf_libra.config import Options
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.cost_model.fit_quality import encode_cost_model
from tf_libra.internal import formatting, log_utils
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.logdir_files import documents, write
from tf_libra.reporting.progress_line import ProgressLine
from tf_libra.reporting.records.graph_export import GroupNode, step_graph
from tf_libra.reporting.records.plan import PlanRecord, versions
from tf_libra.reporting.records.record_types import Record
from tf_libra.reporting.records.recorder import Recorder
from tf_libra.reporting.run_history import RunHistory
from tf_libra.reporting.text_report import ORIGIN_NAMES, describe, plan_table, summary_line
from tf_libra.reporting.tuning_log import log_tuning_result
from tf_libra.specs.telemetry import AllReduceRecord


class RunReporter:
    """Listener to the events of one training function.

    Attributes:
        log: logger of this rank.
        is_closed: True after `close`, when nothing is written any more.
        is_trial: True if the function competes with others, and gives no advice by itself.
    """

    def __init__(self, options: Options) -> None:
        """Creates a reporter that has heard of nothing but the options."""
        self.log = log_utils.logger(rank=0)
        self._options = options
        self._rank = 0
        self._function = ""
        self.is_closed = self.is_trial = False
        self._history = RunHistory(
            options.backend.name, options.strategy.name, options.has_error_feedback
        )
        self._progress = ProgressLine(self.log)
        self._recorder: Recorder | None = None

    def on_join(self, rank: int, options: Options) -> None:
        """Takes the rank and the options that the rendezvous of all ranks has settled."""
        self._rank, self._options, self.log = rank, options, log_utils.logger(rank)
        self._history.set_engine(options.backend.name)
        if rank == 0:
            log_utils.warn_of_unknown_level(self.log)

    def on_function(self, function: str) -> None:
        """Takes the function's name, and opens the records in `logdir`."""
        if self.is_closed or self._function == function:  # a failed first step is repeated
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
                self._options.num_tuning_steps,
            )

    def on_other_step(self, strategy: str) -> None:
        """Counts a step that a strategy of another kind has trained."""
        self._history.add_other_step(strategy)

    def on_activity(self, phase: Phase) -> None:
        """Shows the progress of a phase outside of steps, which may take long."""
        self._show(phase.value)

    def on_idle(self) -> None:
        """Ends the progress line: the phase is over, or an error has ended it."""
        self._progress.end()

    def on_unplanned_gradients(
        self, reducer: str, gradients: Mapping[str, str], has_planned: bool
    ) -> None:
        """Logs which gradients another library reduces, without a plan.

        Args:
            reducer: name of the library.
            gradients: reasons by name, at least one.
            has_planned: True if other gradients can be planned.
        """
        (name, reason), *others = gradients.items()
        text = f"the gradient of {name!r}{f' and {len(others)} more' if others else ''}"
        text = f"{reducer} reduces {text} as the script says ({reason})"
        if has_planned:
            self._remark(text, logging.INFO)
        else:
            has_plan = self._options.all_reduce_plan is not None
            unused = ", and the user-provided plan is not used" if has_plan else ""
            self._remark(f"{text}: there is nothing to plan, the step runs unchanged{unused}")

    def on_variables_broadcast(self, names: Sequence[str], num_compared: int) -> None:
        """Logs on rank 0 which variables were overwritten with its values."""
        if self._rank == 0:
            self.log.info(
                "variables: broadcast %d of %d replicated variables from rank 0, because initial"
                " values differed (first: %r). Pass broadcast_variables='never' to raise.",
                len(names),
                num_compared,
                names[0],
            )

    def on_variables_differ(self, names: Sequence[str]) -> None:
        """Warns on rank 0 of variables that differ between ranks and are not trained."""
        if self._rank == 0:
            self._remark(
                f"variables: {len(names)} variables that no gradient trains and the step does not"
                f" write differ between the ranks ({formatting.listed(names)}), such as statistics"
                " of a frozen layer, so ranks compute different results from the same input. If"
                " rank 0 has loaded them, broadcast them before the first step:"
                " tf_libra.keras.BroadcastVariables() in fit, or hvd.broadcast_variables. Name"
                " rank-local variables in local_variables."
            )

    def on_sparse_gradients(self, names: Sequence[str], is_planned: bool) -> None:
        """Logs the gradients that travel as rows, and whether plans include them."""
        if names:
            schedule = "in the plan's groups" if is_planned else "after the planned all-reduces"
            self._remark(
                f"sparse gradients: {len(names)} ({formatting.listed(names)}) travel as rows,"
                f" {schedule}",
                logging.INFO,
            )

    def on_gradients_rounded(self, dtypes: Mapping[str, tuple[str, str]]) -> None:
        """Logs the gradients that the script itself rounds before they are all-reduced.

        Args:
            dtypes: that of the variable and that of the all-reduce, by name of the gradient.
        """
        for kinds in dict.fromkeys(dtypes.values()):
            names = [name for name, own in dtypes.items() if own == kinds]
            self._remark(
                f"lossy: the script itself rounds {formatting.count(len(names), 'gradient')}"
                f" ({formatting.listed(names)}) from {kinds[0]} to {kinds[1]} before the"
                " all-reduce, whatever wire_dtype is",
                logging.INFO,
            )

    def on_step_without_reductions(self) -> None:
        """Logs that a step without all-reduces ran in a graph that matches the plan."""
        self._remark(
            "not every step all-reduces its gradients, for example with backward_passes_per_step;"
            " the plan applies to the steps that do",
            logging.INFO,
        )

    def on_updates_sharded(self, num_sharded: int, whole: Mapping[str, str]) -> None:
        """Logs which updates ranks share, with reasons for the others by gradient."""
        text = f"updates: each rank updates its part of {num_sharded} gradients' weights"
        if whole:
            name, reason = next(iter(whole.items()))
            text += f", and all of {len(whole)} others, such as {name!r}: {reason}"
        self._remark(text, logging.INFO)

    def on_updates_whole(self, reason: str, level: int = logging.WARNING) -> None:
        """Logs why every rank updates all weights although sharding was allowed or requested."""
        self._remark(f"updates: every rank updates all weights: {reason}", level)

    def _remark(self, text: str, level: int = logging.WARNING) -> None:
        """Logs a remark once, and adds it to `explain`."""
        if self._history.add_remark(text):
            self.log.log(level, "%s", text)

    def on_step_begin(self, phase: Phase, step: int, is_retuning: bool = False) -> None:
        """Records a step's begin in `phase`; `is_retuning` for trials while a plan is active."""
        begins = self._history.enter_phase(phase, is_retuning) or step == 1
        if is_retuning:  # a short burst, which `on_drift_check` has logged
            return
        if begins:
            self.log.info("%s: from step %d on", phase.value, step)
        most = self._options.num_tuning_steps
        self._show(f"{phase.value}: step {step} of at most {most}", begins)

    def on_drift_check(self, found: DriftVerdict, drift: DriftDetector, step: int) -> None:
        """Logs and records a change that a drift check has found."""
        measured, expected = drift.measured_seconds, drift.expected_seconds
        unchanged = (DriftVerdict.NO_CHANGE, DriftVerdict.RETUNING)
        if measured is None or expected is None or found in unchanged:
            return
        if self._recorder is not None:
            is_back = found is DriftVerdict.RECOVERED
            self._recorder.record_drift(step, measured, expected, is_back)
        times = f"{formatting.time(measured)} instead of the expected {formatting.time(expected)}"
        if found is DriftVerdict.DRIFTED:
            self._warn_again(
                f"drift: at step {step} steps take {times}; retuning, with at most"
                f" {RETUNE_STEPS_PER_CHECK} trial steps after every {STEPS_PER_DRIFT_CHECK} steps"
            )
        elif found is DriftVerdict.CACHE_STALE:
            self._warn_again(
                f"drift: at step {step} steps take {times} under the cached plan of an earlier"
                " job; tuning this job"
            )
        else:
            self._warn_again(
                f"drift: at step {step} steps take {formatting.time(measured)} again, near the"
                f" expected {formatting.time(expected)}; the active plan stays"
            )

    def _warn_again(self, text: str) -> None:
        """Logs a warning, also if it was logged before, and adds it to `explain`."""
        self._history.add_remark(text)
        self.log.warning("%s", text)

    def on_phase(self, phase: Phase) -> None:
        """Records the begin of a phase, before its first step."""
        self._history.enter_phase(phase)

    def _show(self, text: str, restart: bool = True) -> None:
        if self._rank == 0 and self._options.progress:
            self._progress.show(text, restart)

    def on_plan_activated(self, conclusion: TuningResult, origin: PlanSource, step: int) -> None:
        """Logs and records a plan that is active from `step` on."""
        self._progress.end()
        if self._rank == 0 and origin is not PlanSource.USER:
            tries_one_rank = bool(getattr(self._options.strategy, "families", ()))
            log_tuning_result(self.log, self._history.snapshot(), conclusion, tries_one_rank)
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
        plan, how = conclusion.plan, f"is active from step {step} on"
        if before is not None and before.plan.fingerprint == plan.fingerprint:
            how = f"stays active at step {step}: no other plan is clearly faster"
        elif before is not None:
            how += f", replacing {before.plan.short_id}"
        source, table = ORIGIN_NAMES[origin.value], plan_table(conclusion)
        self.log.info("run: plan %s (%s) %s\n%s", plan.short_id, source, how, table)

    def _write_logdir(self, conclusion: TuningResult) -> None:
        if self._options.logdir is None:
            return
        model, profile = conclusion.cost_model, conclusion.whole_profile
        texts = {
            "plan": conclusion.plan.to_json(),
            "profile": None if profile is None else profile.to_json(),
            "cost_model": None if model is None else encode_cost_model(model, conclusion.evidence),
        }
        paths, message = documents(self._options.logdir, self._function, tuple(texts))
        if message:
            self._remark(message, logging.INFO)
        write({paths[name]: text for name, text in texts.items() if text is not None}, self.log)

    def on_graph(self, step: int, trace: Any, groups: Sequence[GroupNode]) -> None:
        """Records the graph of a trace (a `FuncGraph`) as rewritten under the active plan."""
        if self._recorder is not None:
            op = self._options.backend.op
            self._recorder.record_graph(step, lambda: step_graph(trace.as_graph_def(), groups, op))

    def on_one_worker(self, compared: OneWorkerComparison | None) -> None:
        """Warns if one worker would train the joint batch faster than measured stages."""
        if compared is not None and compared.is_slower and not self.is_trial:
            self.log.warning("one worker: %s", compared.describe())

    def on_clock_exchange(self, exchanges: tuple[tuple[int, int], ...]) -> None:
        """Records the send and arrival times of messages that all ranks have exchanged."""
        if self._recorder is not None:
            self._recorder.add_clock_exchanges(exchanges)

    def on_step_end(self, step: int, seconds: float, is_steady: bool, num_steps: int = 1) -> None:
        """Records the seconds of each of these steps.

        Args:
            step: number of the last step.
            seconds: wall-clock seconds of one step.
            is_steady: False for a plan's first step and for traced steps.
            num_steps: number of steps in the call.
        """
        self._history.add_step(seconds, is_steady, num_steps)
        if self._recorder is not None:
            self._recorder.record_step_seconds(step, seconds, is_steady)

    def on_step_telemetry(
        self,
        step: int,
        called_ns: tuple[int, int],
        all_reduces: Sequence[AllReduceRecord],
        observation: TrialResult | None = None,
        timeline: MeasuredTimeline | None = None,
        gathers: Sequence[AllReduceRecord] = (),
    ) -> None:
        """Records the all-reduces and gathers of a step under the plan.

        Args:
            step: number of the step.
            called_ns: begin and end of the call.
            all_reduces: telemetry of the engine.
            observation: trace of the step; None for an untraced step.
            timeline: measured timeline of the step; None for an untraced step.
            gathers: gathers of weights that ended during the call.
        """
        if all_reduces:
            self._history.set_omitted_bytes(sum(record.omitted_bytes for record in all_reduces))
        if timeline is not None:
            self._history.add_timeline(timeline)
        if self._recorder is not None:
            self._recorder.record_step(step, called_ns, all_reduces, observation, timeline, gathers)

    def on_plan_measured(self) -> None:
        """Logs measured against predicted backward time after the first steps under the plan."""
        run = self._history.snapshot()
        measured = run.median_backward_seconds()
        if measured is None:
            return
        predicted = None if run.conclusion is None else run.conclusion.plan.predicted_seconds
        self.log.info(
            "run: median backward time is %s over %d steps (predicted: %s)",
            formatting.time(measured),
            len(run.timelines),
            "none" if predicted is None else formatting.time(predicted),
        )

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """Writes a record, made from the function's name and the rank, to the log directory."""
        if self._recorder is not None:
            self._recorder.record(make_record(self._function, self._rank))

    def write_files(self, write_files: Callable[[Path, str, logging.Logger], None]) -> None:
        """Calls a function that writes files, on rank 0, if there is a log directory.

        Args:
            write_files: called with the directory, the function's name and the logger of errors.
        """
        if self._rank == 0 and self._options.logdir is not None and not self.is_closed:
            write_files(self._options.logdir, self._function, self.log)

    def close(self) -> None:
        """Logs a summary and closes the files; runs at the end of the process at the latest."""
        if self.is_closed:
            return
        self.is_closed = True
        atexit.unregister(self.close)
        if self._function:
            step_interrupts().not_at_the_end(self.close)
        self._progress.end()
        run = self._history.snapshot()
        if self._rank == 0 and run.num_steps:
            self.log.info("%s", summary_line(run))
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def explain(self) -> str:
        """Returns a description of the run so far, as text of at most 100 columns."""
        return describe(self._history.snapshot())
