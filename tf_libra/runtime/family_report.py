"""Strategies that trials have compared, as users see them: one value for text, tab and files."""

import dataclasses
import logging
from collections.abc import Mapping
from functools import partial

from tf_libra.internal import log_utils
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.reporting.families import FamilyRecord, write_families
from tf_libra.runtime.family_candidates import FamilyCandidates
from tf_libra.runtime.family_prediction import describe_arguments
from tf_libra.runtime.family_trials import FIRST
from tf_libra.runtime.training_step import TrainingFunction


def compare_families(
    first: TrainingFunction,
    candidates: FamilyCandidates,
    medians: Mapping[str, float],
    chosen: str,
    untimed: str = "",
) -> FamilyComparison:
    """Returns all strategies side by side, as known so far.

    Args:
        first: the step under data parallelism.
        candidates: the other strategies.
        medians: measured steps, by name.
        chosen: name of the strategy that goes on; empty before it is known.
        untimed: why it was chosen by prediction, in a clause; empty if it was not.
    """
    forecast, conclusion = candidates.forecast, first.state.conclusion
    predicted: dict[str, float | None] = {**forecast.known}
    if conclusion is not None:
        predicted[FIRST] = conclusion.predicted_step(conclusion.plan)
    rows = [
        FamilyRow(
            name,
            predicted.get(name),
            medians.get(name),
            candidates.left_out.get(name, ""),
            name in forecast.bounds,
            name in candidates.slow,
            describe_arguments(candidates.arguments.get(name, {})),
        )
        for name in (FIRST, *candidates.names)
    ]
    _, num_workers = first.rendezvous.rank_and_size
    return FamilyComparison(
        max(num_workers, 1),
        tuple(rows),
        chosen,
        _compare_with_one_worker(first, candidates, medians),
        1 if forecast.reference is None else forecast.reference.num_threads,
        forecast.batch,
        forecast.layers,
        untimed,
    )


def _compare_with_one_worker(
    first: TrainingFunction, candidates: FamilyCandidates, medians: Mapping[str, float]
) -> OneWorkerComparison | None:
    """Returns the fastest strategy of several workers against one; None if unknown."""
    reference, alone = candidates.forecast.reference, candidates.alone
    several = [seconds for name, seconds in medians.items() if name != alone]
    if alone is None or alone not in medians:
        if reference is None or (alone is not None and candidates.steps[alone].exceeds_memory):
            return None
        step = min(several, default=reference.compared.step_seconds)
        seconds: float | None = reference.compared.one_worker_seconds
        if not reference.is_whole:  # what layers predict is more than a guess
            seconds = candidates.forecast.known.get(alone or "")
        if seconds is None:
            return None
        return dataclasses.replace(
            reference.compared, step_seconds=step, one_worker_seconds=seconds
        )
    # What would help data parallelism helps the fastest of all at least as much.
    step, conclusion, compared = min(several), first.state.conclusion, None
    if conclusion is not None:
        compared = conclusion.compare_with_one_worker(medians[FIRST], medians[alone])
    if compared is None:
        _, num_workers = first.rendezvous.rank_and_size
        return OneWorkerComparison(num_workers, step, medians[alone], evidence="measured")
    return dataclasses.replace(compared, step_seconds=step)


def show_families(
    first: TrainingFunction, families: FamilyComparison, remark: str, is_tried: bool
) -> None:
    """Logs how strategies compare, on rank 0.

    Args:
        first: the step under data parallelism, which reports.
        families: the strategies.
        remark: what follows the comparison with one worker, in a clause.
        is_tried: whether trials have measured it; else one worker may be faster, a warning.
    """
    rank, _ = first.rendezvous.rank_and_size
    if rank > 0:
        return
    compared = families.one_worker
    if compared is None:
        log_utils.logger(rank).info("strategies: %s", remark)
        return
    level = logging.WARNING if compared.is_slower and not is_tried else logging.INFO
    log_utils.logger(rank).log(level, "strategies: %s; %s", compared.describe(), remark)


def record_families(first: TrainingFunction, families: FamilyComparison, step: int) -> None:
    """Writes how strategies compare to the log directory, on rank 0.

    Args:
        first: the step under data parallelism, which reports.
        families: the strategies.
        step: number of steps that trials have taken.
    """
    if first.rendezvous.rank_and_size[0] == 0:
        first.record(lambda function, _: FamilyRecord(function, step, families))
        first.write_files(partial(write_families, families))
