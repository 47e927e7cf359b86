"""Cases of steps on one rank: results, variables, reads by single ranks, and other functions."""

import contextlib
import dataclasses
import gc
from unittest import mock

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from staged import refused  # also lets modules of the tests be found

import tf_libra
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model, burst_layer_names, make_burst_plan
from tf_libra.autotune.drift_detector import DriftDetector
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.partition.guarded_calls import CallGuard
from tf_libra.model_parallel.runtime import burst_planner
from tf_libra.runtime import family_candidates, family_prediction, family_step
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.strategies import Auto, DeepPool, OneRank, Spp

hvd.init()
cases = harness.Cases()
SAMPLES, LAST = 24, harness.SIZE - 1
COMPARED_STEPS, FIRST = 90, "data parallelism"
FAMILIES = ("one-rank", "spp", "deeppool")
MODELS = (models.mlp, models.convolutional, models.embedded, models.normalized)


def own(batch):
    return [harness.own(part) for part in batch]


def every_value(trained):
    every = map(tf.convert_to_tensor, trained.every_variable)
    return {str(i): value.numpy() for i, value in enumerate(every)}


def plain(result):
    return {name: np.array(value).tolist() for name, value in result.items()}


def measured():
    """Measures every rank for three steps, and trains two more."""
    trained = build_model(models.mlp)
    step = tf_libra.optimize("one-rank")(tf.function(trained.step))
    returned, phases, settled = [], [], []
    for batch in batches(3 * harness.SIZE + 2, SAMPLES):
        returned.append(plain(step(*own(batch))))
        phases.append(step.phase)
        settled.append(step.settled)
    plan = step.plan
    step.synchronize_variables()
    cases.save(**every_value(trained))
    return {
        "returned": returned,
        "phases": phases,
        "settled": settled,
        "plan": plan.to_document(),
        "explained": step.explain(),
    }


def given(make):
    """Reads variables on all ranks, without synchronization, and saves them on rank 0 alone."""
    trained = build_model(make)
    step = tf_libra.optimize(OneRank(rank=0))(tf.function(trained.step))
    returned = [plain(step(*own(batch))) for batch in batches(3, SAMPLES)]
    at_once = every_value(trained)
    if harness.RANK == 0:
        checkpoint = tf.train.Checkpoint(variables=trained.variables)
        path = checkpoint.write(str(harness.FOLDER / f"{make.__name__}.checkpoint"))
        for variable in trained.variables:
            variable.assign(tf.zeros_like(variable))
        checkpoint.read(path).assert_consumed()
        reread = every_value(trained)
        assert all(np.array_equal(reread[name], value) for name, value in at_once.items())
    step.synchronize_variables()
    values = every_value(trained)
    equal = all(np.array_equal(values[name], value) for name, value in at_once.items())
    cases.save(**values)
    return {"returned": returned, "was_current": equal}


def read_alone(what, strategy, readers, **options):
    """Reads variables on one rank alone after every step, each time by other means."""
    trained = build_model(models.counted)
    variables = list(map(plain_variable, trained.every_variable))
    step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
    in_function = tf.function(lambda: [tf.identity(variable) for variable in variables])
    in_function()  # traced before the variables are missing
    checkpoint = tf.train.Checkpoint(variables=variables)
    path = str(harness.FOLDER / f"checkpoint {what} {harness.RANK}")

    def saved():
        written = checkpoint.write(path)
        names = [f"variables/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(len(variables))]
        return [tf.train.load_variable(written, name) for name in names]

    def exported():
        module = tf.Module()
        module.function = tf.function(in_function, input_signature=[])
        module.variables_of_step = variables
        tf.saved_model.save(module, f"{path} module")
        loaded = tf.saved_model.load(f"{path} module")
        return loaded.function()

    means = {
        "eager": lambda: [variable.numpy() for variable in variables],
        "function": in_function,
        "checkpoint": saved,
        "module": exported,
        "operator": lambda: [tf.add(variable, tf.zeros_like(variable)) for variable in variables],
        "raw": lambda: [tf.raw_ops.Identity(input=variable) for variable in variables],
    }
    found = {}
    turns = [(name, read, reader) for name, read in means.items() for reader in readers]
    for batch, (name, read, reader) in zip(batches(len(turns), SAMPLES), turns, strict=True):
        step(*own(batch))
        if reader == harness.RANK:
            found |= {f"{name} {i}": np.array(value) for i, value in enumerate(read())}
    cases.save(**found)
    return list(means)


def read_in_bursts():
    plan = make_burst_plan(burst_layer_names(models.counted), (2, 1, 2), harness.SIZE)
    return read_alone("bursts", DeepPool(), [0, LAST], plan=plan)


def plain_variable(variable):
    return variable.value if hasattr(variable, "path") else variable


def changed_between():
    """Changes variables on the training rank before others have read them."""
    weight = tf.Variable(tf.ones([4]))
    captured = tf.data.Dataset.range(1).map(lambda _: weight + 0.0)

    @tf_libra.optimize(OneRank(rank=0))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(4 * tape.gradient(loss, weight))
        return loss

    def double(is_owner):
        if (harness.RANK == 0) is is_owner:
            before = weight.numpy().tolist()
            weight.assign(2 * weight)
            weight.scatter_add(tf.IndexedSlices([1.0], [0]))
            read.append([before, weight.numpy().tolist()])
        harness.barrier()

    read, in_dataset = [], []
    for _ in range(2):
        step(tf.ones([2, 4]))
        in_dataset.append(next(iter(captured)).numpy().tolist())
        double(is_owner=True)
        double(is_owner=False)
    return {"read": read, "in_dataset": in_dataset}


def dropped():
    """Reads variables whose function and model the training rank has dropped."""

    def train():
        trained = build_model(models.mlp)
        step = tf_libra.optimize(OneRank(rank=0))(tf.function(trained.step))
        for batch in batches(2, SAMPLES):
            step(*own(batch))
        return trained

    trained = train()
    if harness.RANK == 0:
        del trained
        gc.collect()
    harness.barrier()
    if harness.RANK == LAST:
        cases.save(**every_value(trained))
    harness.barrier()


def alternating():
    """Trains one model in turns by data parallelism, on the last rank, and on the first one."""
    trained = build_model(models.convolutional)
    steps = [
        tf_libra.optimize(strategy)(tf.function(trained.step))
        for strategy in ("wfbp", OneRank(rank=LAST), OneRank(rank=0))
    ]
    for number, batch in enumerate(batches(8, SAMPLES)):
        steps[number % 3 if number < 6 else number % 2](*own(batch))
    steps[1].synchronize_variables()
    steps[2].synchronize_variables()
    cases.save(**every_value(trained))


@contextlib.contextmanager
def every_family_in_trials(chosen, far_faster=float("inf")):
    """Lets all families join trials, and `chosen` win: which are fast depends on the machine."""
    endless = float("inf")
    limits = {"PREDICTION_ERROR": endless, "MEASURED_SECONDS": 1e9}
    with (
        mock.patch.object(family_candidates, "FAR_FASTER", far_faster),
        mock.patch.object(family_candidates.FamilyCandidates, "_reason_slow", lambda *_: ""),
        mock.patch.multiple(family_prediction, **limits),
        mock.patch.object(family_step, "MAX_SECONDS_OF_ALL", endless),
        mock.patch.object(
            family_step,
            "choose_fastest",
            lambda seconds: chosen if chosen in seconds else FIRST,
        ),
    ):
        yield


def compared(
    make,
    chosen="one-rank",
    allow=("joint_results",),
    far_faster=float("inf"),
    families=("one-rank",),
    **options,
):
    """Trains through trials of data parallelism and other families; `chosen` wins.

    Which of them is faster depends on the machine, and so does whether one is far faster.
    """
    trained = build_model(make)
    strategy = Auto(allow=allow, threads=(1,), streams=(1,), families=families)
    steady = tf_libra.Tuning(retune_overhead=0.0)
    phases = []
    with every_family_in_trials(chosen, far_faster):
        step = tf_libra.optimize(strategy, max_tuning_steps=20, tuning=steady, **options)(
            tf.function(trained.step)
        )
        num_steps = COMPARED_STEPS * (1 + len(families)) // 2
        for batch in batches(num_steps, SAMPLES):
            result = step(*own(batch))
            phases.append(step.phase)
    at_once = every_value(trained)
    step.synchronize_variables()
    values = every_value(trained)
    cases.save(**values, result=result["logits"])
    return {
        "phases": phases,
        "settled": step.settled,
        "plan": type(step.plan).__name__,
        "number": step._training._step.step_number,
        "explained": step.explain(),
        "loss": float(result["loss"]),
        "was_current": all(np.array_equal(values[name], at_once[name]) for name in values),
    }


def failing_in_a_step():
    """Looks up a row per example, of which there are enough for one rank alone."""
    trained = without_metric()
    rows = tf.Variable(tf.ones([SAMPLES // harness.SIZE, 1]), trainable=False)

    def call(images):
        logits = trained.call(images)
        return logits * tf.gather(rows, tf.range(tf.shape(logits)[0]))

    return dataclasses.replace(trained, call=call)


def next_pipeline():
    """Chooses a pipeline, goes on with it in another job, and follows its plan as `plan=`."""
    joint = list(batches(3, SAMPLES))
    strategy = Auto(threads=(1,), streams=(1,), families=("one-rank", "spp"))

    def train(*strategies, most=3, **options):
        tf.keras.backend.clear_session()  # a job of its own has the same names of layers
        trained = build_model(without_metric)
        step = tf_libra.optimize(*strategies, progress=False, **options)(tf.function(trained.step))
        settled = []
        while len(settled) < most and not (most > 3 and step.settled):
            step(*own(joint[len(settled) % 3]))
            settled.append(step.settled)
        return step, every_value(trained), settled

    cache = {"cache_dir": harness.FOLDER / "pipeline cache"}
    with every_family_in_trials("spp"):
        chosen, _, _ = train(strategy, most=200, logdir=harness.FOLDER / "families", **cache)
    compared_by_trials = chosen.explain()
    step, values, settled = train(strategy, **cache)
    followed, found, _ = train(plan=step.plan)
    cases.save(**values)
    return {
        "settled": settled,
        "explained": step.explain(),
        "compared": compared_by_trials,
        "fingerprints": [one.plan.fingerprint for one in (chosen, step, followed)],
        "same": all(np.allclose(found[name], values[name], 1e-4, 1e-5) for name in values),
    }


def failed():
    """Trains through trials of families that fail on the last rank alone, or measure too long."""
    broken = mock.Mock(side_effect=RuntimeError("broken here"))
    run_step, call = StageExecutor.step, CallGuard.call

    def fail_after(guard, run, outputs):
        def run_and_fail():
            run()
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")

        return call(guard, run_and_fail, outputs)

    def step(executor, arguments):
        with mock.patch.object(CallGuard, "call", fail_after):
            return run_step(executor, arguments)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(family_step, "MAX_MEASURED_PER_RANK", 1))
        if harness.RANK == LAST:
            patches.enter_context(mock.patch.object(StageExecutor, "step", step))
            patches.enter_context(mock.patch.object(burst_planner, "flows", broken))
        return compared(without_metric, FIRST, allow=(), families=FAMILIES)


def next_job():
    """Tunes, and goes on as another job of the same step does, from the cache, until drift."""
    options = {"cache_dir": harness.FOLDER / "cache", "progress": False}
    strategy = Auto(threads=(1,), streams=(1,))
    settled_after, kinds, explained = [], [], []

    def train(step, number):
        step(*own(joint[number % len(joint)]))

    joint = list(batches(4, SAMPLES))
    with (
        mock.patch.multiple(family_candidates, FAR_FASTER=float("inf"), HOPELESS=float("inf")),
        mock.patch.object(family_step, "choose_fastest", lambda seconds: [*seconds][-1]),
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
        mock.patch.object(family_step, "choose_fastest", lambda seconds: FIRST),
    ):
        for number in range(90):
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


def without_metrics():
    return dataclasses.replace(models.convolutional(), metric=None, norms=None)


def without_metric():
    return dataclasses.replace(models.mlp(), metric=None)


def summed():
    """A model whose loss is no mean, so that its gradients grow with the batch."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    return dataclasses.replace(without_metric(), loss=loss)


def evaluated():
    """Evaluates and trains on batches of other sizes."""
    trained = build_model(models.counted)
    step = tf_libra.optimize(OneRank(rank=LAST))(tf.function(trained.flagged))
    first, second = batches(2, SAMPLES)
    half = [part[: SAMPLES // 2] for part in second]
    returned = [
        plain(step(*own(first))),
        plain(step(*own(second), training=False)),
        plain(step(*own(half))),
    ]
    step.synchronize_variables()
    cases.save(**every_value(trained))
    return {"returned": returned}


def nothing_returned():
    """Runs a step without results, whose ranks must not run ahead of each other."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=LAST))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))

    for _ in range(20):
        step(tf.fill([2], float(harness.RANK)))
    step.synchronize_variables()
    return float(weight)


def text_returned():
    """Returns what cannot be sent."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=0))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))
        return tf.as_string(loss)

    step(tf.ones([2]))


cases.add("measured", measured)
for make in MODELS if harness.SIZE == 2 else MODELS[:1]:
    cases.add(f"given {make.__name__}", lambda make=make: given(make))
for case in (nothing_returned, text_returned):
    cases(case)
if harness.SIZE == 2:  # more ranks change nothing
    cases(alternating)
    cases(evaluated)
    cases.add("compared mlp", lambda: compared(models.mlp))
    cases.add("compared embedded", lambda: compared(models.embedded, sparse_as_dense=True))
    cases.add("compared sparse", lambda: compared(models.embedded))
    cases.add("compared convolutional", lambda: compared(models.convolutional, FIRST))
    cases.add("compared normalized", lambda: compared(models.normalized))
    cases.add("compared slow", lambda: compared(without_metric, allow=(), far_faster=0.0))
    cases.add("compared metric", lambda: compared(models.mlp, allow=()))
    cases.add("compared failing", lambda: compared(failing_in_a_step, FIRST, allow=()))
    cases.add("compared summed", lambda: compared(summed, allow=(), families=FAMILIES))
    for chosen, make in (("spp", without_metric), ("deeppool", without_metrics)):
        cases.add(
            f"compared {chosen}",
            lambda chosen=chosen, make=make: compared(make, chosen, allow=(), families=FAMILIES),
        )
    cases(next_pipeline)
    cases.add("read on rank 0", lambda: read_alone("first", OneRank(rank=LAST), [0]))
cases.add("read on the last rank", lambda: read_alone("last", OneRank(rank=0), [LAST]))
STAGES = Spp(num_microbatches=2, num_stages=2)
cases.add("read in a pipeline", lambda: read_alone("pipeline", STAGES, [0, LAST]))
cases.add("read in bursts", read_in_bursts)
cases(changed_between)
cases(dropped)
if harness.SIZE == 3:  # as two ranks would, and one more informs or follows the others
    cases(next_job)
    cases(failed)
    cases.add("compared own", lambda: compared(without_metric, allow=()))
cases.add("no such rank", lambda: refused(models.mlp, OneRank(rank=harness.SIZE)))
cases.run()
