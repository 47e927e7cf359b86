"""Log lines of a tuning's result, before its plan is activated."""

import logging
from dataclasses import replace

from tf_libra.autotune import TuningResult
from tf_libra.reporting.run_history import RunSnapshot
from tf_libra.reporting.text_report import fit_line, why_another_plan


def log_tuning_result(
    log: logging.Logger, run: RunSnapshot, conclusion: TuningResult, tries_one_rank: bool
) -> None:
    """Logs why the strategy differs, the trials, the model's fit, the notes, and the plan.

    Args:
        log: logger of rank 0.
        run: the run before the plan is activated.
        conclusion: result of the tuning.
        tries_one_rank: whether one rank takes part in trials, which follow.
    """
    plan = conclusion.plan
    if reason := why_another_plan(replace(run, conclusion=conclusion)):
        log.info("plan: %s", reason)
    trials = None if conclusion.race is None else conclusion.race.describe()
    if trials in conclusion.notes:
        log.info("trials: %s", trials)
    if conclusion.is_fitted:
        log.info("fit: %s", fit_line(conclusion))
    # After a complete tuning with a trusted model, notes ask for nothing; `explain` has them.
    is_sound = conclusion.is_complete and not conclusion.evidence.caveat
    level = logging.DEBUG if is_sound else logging.WARNING
    for note in conclusion.notes:
        if note != trials:
            log.log(level, "note: %s", note)
    log.info(
        "plan: %s made %s of %d tensors",
        plan.strategy,
        plan.describe_groups(),
        len(plan.tensor_names),
    )
    if plan.loss is not None:
        log.info("plan: %s", plan.loss)
    if run.conclusion is None:
        _warn_of_one_worker(log, run, conclusion, tries_one_rank)


def _warn_of_one_worker(
    log: logging.Logger, run: RunSnapshot, conclusion: TuningResult, tries_one_rank: bool
) -> None:
    """Says if one worker would train the joint batch faster; a warning unless trials follow."""
    compared = conclusion.compare_with_one_worker()
    if compared is None or not compared.is_slower:
        return
    if tries_one_rank:
        log.info("one worker: %s; trials show what is true", compared.describe())
        return
    advice = "; strategy 'auto' tries to train on one rank"
    log.warning("one worker: %s%s", compared.describe(), "" if run.requested == "auto" else advice)
