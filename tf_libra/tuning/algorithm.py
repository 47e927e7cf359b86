"""LIBRA's Algorithm 2, as rank 0 runs it, and a race between what it and other planners propose."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from tf_libra.model.plan import Plan
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.contenders import contenders
from tf_libra.tuning.experiment import Experiment, Observation
from tf_libra.tuning.experiments import baseline, made, measuring, running_at_once, sampling
from tf_libra.tuning.findings import Findings
from tf_libra.tuning.fit_and_plan import fit_and_plan, unraced
from tf_libra.tuning.plans_to_try import simultaneous_plan
from tf_libra.tuning.race import race
from tf_libra.tuning.task import Task

# Untraced steps under one all-reduce after backward: what a step takes without any plan. Where
# there is a race, that has more of them, in turns with other plans.
BASELINE_STEPS = 2
BASELINE_STEPS_BEFORE_A_RACE = 1

Tuner = Generator[Experiment, Observation | None, Conclusion]


def tune_by_model(task: Task) -> Tuner:
    """Measures, samples, fits, plans, and races where the strategy does."""
    conclusion = yield from concluded(task)
    if not task.strategy.races or conclusion.cost_model is None:
        return conclusion
    proposed = contenders(conclusion, task.strategy, task.runs_streams, task.in_force, task.start)
    return (yield from raced(conclusion, proposed, task))


def raced(
    conclusion: Conclusion,
    proposed: Sequence[tuple[Plan, float | None]],
    task: Task,
    tried: Sequence[Plan] = (),
) -> Tuner:
    """A conclusion after a race between plans, of which that in force is not easily left.

    Where the budget has ended before the first round it is one without; see `unraced`.

    Args:
        conclusion: before it.
        proposed: the plans, with their predicted steps.
        task: what is tuned.
        tried: those of them that have had steps in a search.
    """
    known = {plan.fingerprint for plan in tried}
    result = yield from race(proposed, task.end, error=conclusion.held_out_error, known=known)
    if result.num_rounds == 0 and task.end.came_early:
        return unraced(conclusion, task)
    return conclusion.after(result if task.in_force is None else result.keeping(task.in_force))


def concluded(task: Task) -> Tuner:
    """All of it but the race."""
    tensors, strategy, num_workers, end = task.tensors, task.strategy, task.num_workers, task.end
    findings = Findings()
    threads = strategy.allowed_threads
    baseline_steps = BASELINE_STEPS_BEFORE_A_RACE if strategy.races else BASELINE_STEPS
    yield from made(baseline(tensors, threads[0], num_workers, baseline_steps), findings, end)
    yield from made(measuring(tensors, threads, num_workers), findings, end)
    profile = findings.profile(tensors)
    if profile is not None:
        yield from made(sampling(profile.profile, threads, num_workers), findings, end)
        if task.runs_streams and strategy.num_streams > 1:
            plan = simultaneous_plan(profile.profile, threads[0], num_workers)
            yield from made(running_at_once(plan), findings, end)
        # Only now it is known what is usual; the plans that were sampled keep their tensors' order.
        findings = findings.at_usual_pace()
        profile = findings.profile(tensors, profile.profile.names)
    notes = findings.notes()
    if end.came_early:
        notes.append(end.note())
    conclusion = fit_and_plan(task, findings, profile, notes)
    is_complete = not end.came_early and conclusion.cost_model is not None
    return replace(conclusion, is_complete=is_complete)
