"""Cases of trials of `auto`: one rank and other families, failures, and next jobs."""

import contextlib
from unittest import mock

import harness
import horovod.tensorflow as hvd
import numpy as np
import staged  # noqa: F401 (lets modules of the tests be found)
import tensorflow as tf
from forced_families import FIRST, every_family_in_trials
from one_rank_faults import failing_after, failing_between_turns
from one_rank_models import failing_in_a_step, influenced, summed, varied, without_metric
from one_rank_steps import (
    FAMILIES,
    LAST,
    MAX_STEPS,
    SAMPLES,
    cases,
    every_value,
    own,
    slowed,
)

import tf_libra
from tests.model_parallel import models, plain_models
from tests.model_parallel.job import batches, build_model
from tf_libra.autotune.drift_detector import DriftDetector
from tf_libra.model_parallel.capture import joint_memory
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.stage_variables import StageVariables
from tf_libra.model_parallel.runtime import burst_planner
from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining
from tf_libra.planning.allowed_differences import ALLOWED
from tf_libra.runtime import family_candidates, family_forecast, trial_sequence
from tf_libra.runtime.family_trials import Turns
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.strategies import Auto

hvd.init()
SETTLED_STEPS = 10
STAGED = {2: "spp", 3: "deeppool"}  # strategies that win trials
RACING = 38  # steps of tuning that have trials of plans


def own_values():
    """Chooses one rank, and then values of which each rank has its own, that no step trains.

    Then another function trains the same weight through trials of its own.
    """
    weight, own_scale = tf.Variable(tf.ones([4])), tf.Variable(1.0, trainable=False)

    @tf.function
    def traced(examples, scale):
        with tf.GradientTape() as tape:
            loss = own_scale * scale * tf.reduce_mean(weight * examples)
        weight.assign_sub(4 * tape.gradient(loss, weight))
        return loss

    strategy = Auto(threads=(1,), streams=(1,), families=("one-rank",))
    steady = tf_libra.Tuning(retune_overhead=0.0)
    decorate = tf_libra.optimize(strategy, max_tuning_steps=15, tuning=steady)
    step, other = decorate(traced), decorate(tf.function(traced.python_function))

    def change(scale, step=step):
        before = weight.numpy()
        step(tf.ones([2, 4]), tf.constant(scale))
        return type(step.plan).__name__, (before - weight.numpy()).tolist()

    def settle(step):
        with every_family_in_trials("one-rank"):
            for _ in range(MAX_STEPS):
                change(1.0, step)
                if step.settled:
                    break

    settle(step)
    changes = [change(1.0), change(1.0 + harness.RANK)]
    own_scale.assign(1.0 + harness.RANK)
    changes.append(change(1.0))
    own_scale.assign(3.0)
    changes.append(change(1.0))
    settle(other)
    return [*changes, change(1.0, other)]


def compared(
    make,
    chosen="one-rank",
    allow=("joint_results",),
    far_faster=float("inf"),
    families=("one-rank",),
    evaluates=False,
    remeasures=False,
    tuning_steps=16,
    **options,
):
    """Trains through trials of data parallelism and other families; `chosen` wins.

    Which of them is faster depends on the machine, and so does whether one is far faster.
    With `evaluates`, the last rank alone calls the step in between, with a flag. With `remeasures`,
    every trial contradicts its prediction, and links are measured again. Half of `tuning_steps`
    tune data parallelism: with `RACING` steps, plans have trials, too.
    """
    trained = build_model(make)
    strategy = Auto(allow=allow, threads=(1,), streams=(1,), families=families)
    steady = tf_libra.Tuning(retune_overhead=0.0)
    phases, traced_sizes = [], []

    def loss(images, labels):
        return trained.loss(labels, trained.call(images))

    @tf.function
    def traced(*batch, training=True):
        traced_sizes.append(batch[0].shape[0])
        return trained.step(*batch) if training else loss(*batch)

    contradicts = mock.patch.object(family_forecast, "contradicts_links", lambda *_: remeasures)
    with every_family_in_trials(chosen, far_faster), contradicts:
        step = tf_libra.optimize(strategy, max_tuning_steps=tuning_steps, tuning=steady, **options)(
            traced
        )
        num_settled = 0
        for batch in batches(MAX_STEPS, SAMPLES):
            result = step(*own(batch))
            phases.append(step.phase)
            num_settled += step.settled
            if evaluates and harness.RANK == LAST:
                np.testing.assert_allclose(step(*batch, training=False), loss(*batch), rtol=1e-4)
            if num_settled == SETTLED_STEPS:
                break
    before_sync = every_value(trained)
    step.synchronize_variables()
    values = every_value(trained)
    cases.save(**values, result=result["logits"])
    return {
        "phases": phases,
        "traced_sizes": traced_sizes,
        "settled": step.settled,
        "plan": type(step.plan).__name__,
        "rank": getattr(step.plan, "rank", None),
        "num_microbatches": getattr(step.plan, "num_microbatches", None),
        "number": step._training._step.step_number,
        "explained": step.explain(),
        "loss": float(result["loss"]),
        "remeasured": step._training._trials._has_measured_links,
        "was_current": all(np.array_equal(values[name], before_sync[name]) for name in values),
    }


def on_a_slow_rank():
    """Trains sparse gradients, whose rows one rank keeps, through trials. Rank 0 is slow."""
    with slowed(0):
        return compared(models.embedded, families=FAMILIES, tuning_steps=RACING)


def large():
    """Trains through trials of a joint batch that exceeds the memory of a rank."""
    seen, count = [], joint_memory.output_bytes

    def record(graph):
        seen.append(count(graph))
        return seen[-1]

    available = mock.Mock(side_effect=lambda: seen[0] - 1)  # the joint batch is checked first
    with (
        mock.patch.object(joint_memory, "output_bytes", record),
        mock.patch.object(joint_memory, "available_bytes", available),
    ):
        return compared(without_metric, "spp", allow=(), families=("one-rank", "spp"))


def next_plan(chosen):
    """Chooses stages, goes on with them in another job, and follows their plan as `plan=`."""
    joint = list(batches(3, SAMPLES))
    strategy = Auto(threads=(1,), streams=(1,), families=("one-rank", chosen))

    def train(*strategies, most=3, **options):
        tf.keras.backend.clear_session()  # a job of its own has the same names of layers
        trained = build_model(without_metric)
        step = tf_libra.optimize(*strategies, progress=False, **options)(tf.function(trained.step))
        settled = []
        while len(settled) < most and not (most > 3 and step.settled):
            step(*own(joint[len(settled) % 3]))
            settled.append(step.settled)
        return step, every_value(trained), settled

    cache = {"cache_dir": harness.FOLDER / f"cache of {chosen}"}
    logdir = harness.FOLDER / f"families with {chosen}"
    with every_family_in_trials(chosen):
        first, _, _ = train(strategy, most=200, logdir=logdir, **cache)
    compared_by_trials = first.explain()
    step, values, settled = train(strategy, **cache)
    followed, found, _ = train(plan=step.plan)
    cases.save(**values)
    fingerprints = [trained.plan.fingerprint for trained in (first, step, followed)]
    explained, kind = step.explain(), type(step.plan).__name__
    return {
        "settled": settled,
        "explained": explained,
        "plan": kind,
        "compared": compared_by_trials,
        "fingerprints": fingerprints,
        "same": all(np.allclose(found[name], values[name], 1e-4, 1e-5) for name in values),
        "after drift": after_drift(step, joint, chosen) if chosen == "deeppool" else None,
    }


def after_drift(step, joint, chosen):
    """Lets step times change, so that families plan again, also one that follows a plan.

    Returns the kind of the plan, how often it was made again, and the last loss, also of one
    process.
    """
    alone = build_model(without_metric)
    for batch in joint:
        expected = alone.accumulated(*batch, 1)
    begin_again = CandidateTraining._begin_again
    with (
        every_family_in_trials(chosen),
        mock.patch.object(DriftDetector, "has_drifted", True),
        mock.patch.object(DriftDetector, "affords", lambda *_: True),
        mock.patch.object(CandidateTraining, "_begin_again", autospec=True) as planned_again,
    ):
        planned_again.side_effect = begin_again
        for number in range(200):
            batch = joint[number % len(joint)]
            result, expected = step(*own(batch)), alone.accumulated(*batch, 1)
            if number > 40 and step.settled:
                break
    losses = [float(result["loss"]), float(expected["loss"])]
    return [type(step.plan).__name__, planned_again.call_count, losses]


def failed():
    """Trains through trials of families that fail on the last rank alone, or measure too long."""
    broken = mock.Mock(side_effect=RuntimeError("broken here"))
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(trial_sequence, "MAX_MEASURED_PER_RANK", 1))
        if harness.RANK == LAST:
            patches.enter_context(mock.patch.object(StageExecutor, "step", failing_after(0)))
            patches.enter_context(mock.patch.object(burst_planner, "flows", broken))
        return compared(without_metric, FIRST, allow=(), families=FAMILIES)


def failed_in_turn():
    """Trains through trials of families that have trained, and then fail on the last rank.

    One rank fails when its second turn begins, after that of the pipeline, and the pipeline when
    its third one does.
    """
    with contextlib.ExitStack() as patches:
        if harness.RANK == LAST:
            note, fail = failing_between_turns()
            for owner, name, function in (
                (StageExecutor, "step", failing_after(9)),
                (StageVariables, "synchronize_with_others", fail),
                (Turns, "record", note),
            ):
                patches.enter_context(mock.patch.object(owner, name, function))
        return compared(
            without_metric, "spp", (), families=("one-rank", "spp"), tuning_steps=RACING
        )


def next_job():
    """Tunes, and goes on as another job of the same step does, from the cache, until drift."""
    options = {"cache_dir": harness.FOLDER / "cache", "progress": False}
    strategy = Auto(threads=(1,), streams=(1,))
    settled_after, kinds, explained = [], [], []

    def train(step, number):
        step(*own(joint[number % len(joint)]))

    joint = list(batches(4, SAMPLES))
    with (
        mock.patch.object(family_candidates, "FAR_FASTER", float("inf")),
        mock.patch.object(family_forecast, "HOPELESS", float("inf")),
        # Whether others take part depends on the machine.
        mock.patch.object(trial_sequence, "choose_fastest", lambda _: "one-rank"),
    ):
        for _ in range(2):
            trained = build_model(without_metric)
            step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
            number = 0
            while not step.settled and number < 200:
                train(step, number)
                number += 1
            settled_after.append(number)
            kinds.append(type(step.plan).__name__)
            explained.append(step.explain())
    followed = step.plan.to_json()
    for number in range(2, 4):
        train(step, number)
    step.check_variables()
    saved = every_value(trained)
    cases.save(**saved)
    # A batch that is smaller on one rank, as at the end of an epoch.
    inputs, labels = own(joint[0])
    size = len(labels) - (harness.RANK == LAST)
    step(inputs[:size], labels[:size])
    kinds.append(type(step.plan).__name__)
    train(step, 0)
    kinds.append(type(step.plan).__name__)
    # Labels of another type on one rank, which traces the step again.
    step(inputs, tf.cast(labels, tf.int64 if harness.RANK == LAST else labels.dtype))
    kinds.append(type(step.plan).__name__)
    train(step, 0)
    with (
        mock.patch.object(DriftDetector, "has_drifted", True),
        mock.patch.object(DriftDetector, "affords", lambda *_: True),
        mock.patch.object(trial_sequence, "choose_fastest", lambda seconds: FIRST),
    ):
        for number in range(200):
            train(step, number)
            if number > 40 and step.settled:
                break
    kinds.append(type(step.plan).__name__)
    given = build_model(without_metric)
    step = tf_libra.optimize(plan=OneRankPlan.from_json(followed))(tf.function(given.step))
    for number in range(4):
        train(step, number)
    found = every_value(given)
    same = [np.allclose(found[name], saved[name], 1e-3, 1e-4) for name in saved]
    return {
        "settled_after": settled_after,
        "kinds": kinds,
        "explained": explained[1],
        "given": [type(step.plan).__name__, all(same)],
    }


if harness.SIZE == 2:  # more ranks change nothing
    cases.add("compared mlp", lambda: compared(models.mlp, evaluates=True, tuning_steps=RACING))
    cases.add("compared sparse", on_a_slow_rank)
    cases.add("compared allowed", lambda: compared(varied, allow=ALLOWED))
    cases.add("compared slow", lambda: compared(without_metric, allow=(), far_faster=0.0))
    cases.add("compared metric", lambda: compared(influenced, allow=()))
    cases.add("compared failing", lambda: compared(failing_in_a_step, FIRST, allow=()))
    cases.add("compared summed", lambda: compared(summed, allow=(), families=FAMILIES))
    for chosen in ("spp", "deeppool"):
        cases.add(
            f"compared {chosen}",
            lambda chosen=chosen: compared(
                models.mlp, chosen, allow=(), families=FAMILIES, remeasures=True
            ),
        )
        cases.add(f"next {chosen}", lambda chosen=chosen: next_plan(chosen))
    cases(large)
    cases(own_values)
if harness.SIZE == 3:  # as two ranks would, and one more informs or follows the others
    cases(next_job)
    cases(failed)
    cases(failed_in_turn)
    cases.add("compared own", lambda: compared(models.mlp, allow=()))
ROWS = plain_models.scattered if harness.SIZE == 2 else plain_models.words
cases.add("compared rows", lambda: compared(ROWS, STAGED[harness.SIZE], (), families=FAMILIES))
cases.run()
