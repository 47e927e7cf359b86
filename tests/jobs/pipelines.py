"""Cases of pipelines on several workers: results, variables, and rejected steps."""

import contextlib
import gc
import itertools
import os
import types

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from layer_stack import Stack, batch
from staged import refused  # also lets modules of the tests be found

import tf_libra
import tf_libra.elastic
from benchmarks.rendezvous_env import meeting
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model, make_plan, make_rank, run
from tf_libra.capture.variables import plain
from tf_libra.model_parallel.execution.transport import LanesTransport
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.strategies import DataParallel, GPipe, Spp

hvd.init()
cases = harness.Cases()
STEPS, SAMPLES, MICROBATCHES = 5, 48, 4
AT_ONCE = {"max_tuning_steps": 2}
SHORT = (24, 24, 3, 24, 1)  # examples of each rank


def train(make, strategy, **options):
    trained = build_model(make)
    step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
    returned = []
    for images, labels in batches(STEPS, SAMPLES):
        result = step(harness.own(images), harness.own(labels))
        returned.append({name: np.array(value).tolist() for name, value in result.items()})
    step.synchronize_variables()
    every = map(tf.convert_to_tensor, trained.every_variable)
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(every)})
    return {
        "returned": returned,
        "stages": [list(stage.devices) for stage in step.plan.stages],
        "layers": list(step.plan.layer_names),
        "explained": step.explain(),
        "settled": step.settled,
    }


def add(name, strategy, make=None, **options):
    cases.add(name, lambda: train(make or models.EVERY[name], strategy, **options))


def in_stages(count, **arguments):
    return Spp(num_microbatches=MICROBATCHES, num_stages=count, **arguments)


# No batch normalization: it depends on the examples that a replica computes at a time.
if harness.SIZE == 2:
    for model in models.EVERY:
        options = {"logdir": harness.FOLDER / "logdir"} if model == "deep" else {}
        add(model, in_stages(2), **options)
    cases.add("chosen", lambda: train(models.deep, Spp(num_microbatches=MICROBATCHES)))
else:  # all other models have stages with replicas
    make = models.deepest if harness.SIZE == 4 else models.deep
    add("deep", in_stages(harness.SIZE), make, logdir=harness.FOLDER / "logdir")
    add("convolutional", in_stages(2))
    add("transformer", in_stages(harness.SIZE - 1))
if harness.SIZE == 4:
    cases.add("gpipe", lambda: train(models.deep, GPipe(num_microbatches=MICROBATCHES)))
if harness.SIZE != 3:
    by_data = DataParallel(num_microbatches=MICROBATCHES)
    cases.add("data_parallel", lambda: train(models.deep, by_data))


def released():
    """Releases variables of other stages between steps, and synchronizes them on request."""
    trained = build_model(models.deep)
    step = tf_libra.optimize(in_stages(2, release_variables=True))(tf.function(trained.flagged))
    sizes = []

    def run(images, labels, **flag):
        result = step(harness.own(images), harness.own(labels), **flag)
        sizes.append([int(tf.size(variable.value)) for variable in trained.variables])
        return float(result["loss"])

    first, second, third = batches(3, SAMPLES)
    run(*first)
    step.synchronize_variables()
    sizes.append([int(tf.size(variable.value)) for variable in trained.variables])
    run(*second)
    evaluated = run(*second, training=False)
    run(*(tensor[: SAMPLES // 2] for tensor in third))  # another trace
    run(*(tensor[SAMPLES // 2 :] for tensor in third))
    step.synchronize_variables()
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(trained.variables)})
    return {
        "sizes": sizes,
        "stages": [list(stage.devices) for stage in step.plan.stages],
        "evaluated": evaluated,
    }


if harness.SIZE != 3:
    cases.add("released", released)


def grouped():
    """Trains two stages with replicas that all-reduce three groups in their last backward."""
    tf_libra.collectives.connect()
    make, steps = models.convolutional, batches(2, SAMPLES)

    def layout(names):
        return Layout.from_pipeline_plan(make_plan(names, (0, 2), (2, 2), MICROBATCHES))

    lanes = LanesTransport(harness.RANK, "grouped", contextlib.nullcontext)
    rank = make_rank(make, lanes, layout, harness.SIZE, MICROBATCHES, steps, num_groups=3)
    run(rank, harness.RANK)
    alone = build_model(make)
    for step in steps:
        alone.accumulated(*step, MICROBATCHES)
    differences = []
    for own, wanted in zip(rank.trained.variables, alone.variables, strict=True):
        handle = rank.graph.placeholder_of(plain(own))
        if rank.partition.stage_of_variable(handle) in rank.executor.stages:
            difference = tf.abs(tf.convert_to_tensor(own) - tf.convert_to_tensor(wanted))
            differences.append(float(tf.reduce_max(difference)))
    return {"groups": [len(group) for group in rank.executor.layout.groups], "differ": differences}


if harness.SIZE == 4:
    cases.add("grouped", grouped)


def short_batches(*, release=False):
    """Trains with last batches that microbatches, or replicas, do not divide.

    The step is a method, decorated in its class.
    """

    class Trainer:
        def __init__(self):
            self.trained = build_model(models.deep)

        @tf_libra.optimize(in_stages(2, release_variables=release))
        @tf.function
        def step(self, images, labels):
            return self.trained.step(images, labels)

    trainer = Trainer()
    trained, step = trainer.trained, trainer.step
    for size in SHORT:
        [(images, labels)] = batches(1, harness.SIZE * size)
        step(harness.own(images), harness.own(labels))
    step.synchronize_variables()
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(trained.variables)})


if harness.SIZE != 4:  # two stages of one rank, or of two and one: these do not divide all batches
    cases.add("short_batches", short_batches)
    cases.add("short_batches_released", lambda: short_batches(release=True))


def objects_in_turns():
    """Trains two objects of a class with a decorated method."""

    class Trainer:
        def __init__(self):
            self.stack = Stack()

        @tf_libra.optimize(in_stages(2))
        @tf.function
        def step(self, inputs, labels):
            return self.stack.step(inputs, labels)

    trainers, alone = [Trainer(), Trainer()], [Stack(), Stack()]
    for number in range(6):
        joint = batch(number)
        trainers[number % 2].step(*map(harness.own, joint))
        alone[number % 2].step(*joint)
    differences = []
    for trainer, wanted in zip(trainers, alone, strict=True):
        assert trainer.step.plan is not None
        trainer.step.synchronize_variables()
        pairs = zip(trainer.stack.weights, wanted.weights, strict=True)
        differences += [float(tf.reduce_max(tf.abs(a - b))) for a, b in pairs]
    apart = tf.reduce_max(tf.abs(alone[0].weights[0] - alone[1].weights[0]))
    return {"differ": max(differences), "apart": float(apart)}


def adversarial():
    """Returns a generator and a discriminator: their variables, and a step for each."""
    keras = tf.keras
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)

    def stack(*widths):
        dense = [keras.layers.Dense(width, activation="tanh") for width in widths]
        return keras.Sequential([keras.layers.Input([8]), *dense])

    generator, discriminator = stack(8, 12, 8), stack(12, 8, 1)

    def step_of(model, sign):
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def step(noise, real):
            with tf.GradientTape() as tape:
                fake = discriminator(generator(noise))
                loss = sign * tf.reduce_mean(fake - discriminator(real))
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return step

    variables = [*generator.variables, *discriminator.variables]
    return variables, step_of(discriminator, 1.0), step_of(generator, -1.0)


def in_turns(*, release=False):
    """Alternates steps with shared variables, in stages and data-parallel."""
    expected, *steps = adversarial()
    alone = [tf.function(step) for step in (*steps, steps[1])]
    variables, first, second = adversarial()
    decorated = [
        tf_libra.optimize(in_stages(2, release_variables=release))(tf.function(first)),
        tf_libra.optimize(in_stages(2, release_variables=release))(tf.function(second)),
        tf_libra.optimize("syneasgd", **AT_ONCE)(tf.function(second)),
    ]
    start = [variable.numpy() for variable in expected]
    for number in range(7):
        noise, real = (tf.random.stateless_normal([24, 8], [number, seed]) for seed in range(2))
        alone[number % 3](noise, real)
        decorated[number % 3](harness.own(noise), harness.own(real))
    for step in decorated:
        step.synchronize_variables()
    pairs = list(zip(variables, expected, start, strict=True))
    return {
        "difference": max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b, _ in pairs),
        "moved": min(float(np.abs(b.numpy() - c).max()) for _, b, c in pairs),
    }


def gone():
    """Drops a step, on one rank earlier, before another one uses its variables."""
    expected, *steps = adversarial()
    alone = [tf.function(step) for step in steps]
    variables, first, second = adversarial()
    start = [variable.numpy() for variable in expected]
    for number, (step, function) in enumerate(zip((first, second), alone, strict=True)):
        strategy, options = (in_stages(2), {}) if number == 0 else ("syneasgd", AT_ONCE)
        decorated = tf_libra.optimize(strategy, **options)(tf.function(step))
        noise, real = (tf.random.stateless_normal([24, 8], [number, seed]) for seed in range(2))
        function(noise, real)
        decorated(harness.own(noise), harness.own(real))
        kept = decorated if harness.RANK == 1 and number == 0 else None
        del decorated
        gc.collect()
    del kept
    gc.collect()
    pairs = list(zip(variables, expected, start, strict=True))
    return {
        "difference": max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b, _ in pairs),
        "moved": min(float(np.abs(b.numpy() - c).max()) for _, b, c in pairs),
    }


def ends():
    """Drops a step together with its variables, as at the end of a script's main function."""

    def main():
        trained = build_model(models.deep)
        return tf_libra.optimize(in_stages(2))(tf.function(trained.step)), trained

    def train_and_leave():
        [step, trained] = main()  # the step is dropped first
        [(images, labels)] = batches(1, SAMPLES)
        step(harness.own(images), harness.own(labels))
        assert trained.variables

    train_and_leave()
    gc.collect()


def committed():
    """Commits and restores variables of both stages with both kinds of elastic states."""
    stack, alone = Stack(), Stack()
    model = types.SimpleNamespace(variables=stack.weights, build=None, built=True)
    optimizer = types.SimpleNamespace(variables=lambda: stack.momenta)
    every, wanted = [*stack.weights, *stack.momenta], [*alone.weights, *alone.momenta]
    ours = tf_libra.elastic.TensorFlowState(every)
    plain = hvd.elastic.TensorFlowState(every)
    keras = hvd.elastic.TensorFlowKerasState(model, optimizer)
    step = tf_libra.optimize(in_stages(2, release_variables=True))(tf.function(stack.step))

    def differs():
        return max(
            float(tf.reduce_max(tf.abs(a - b))) if a.read_value().shape == b.shape else np.inf
            for a, b in zip(every, wanted, strict=True)
        )

    def train(number):
        joint = batch(number)
        step(*map(harness.own, joint))
        alone.step(*joint)

    ways = itertools.product(("commit", "save", "sync"), (ours, plain, keras))
    weights = tf_libra.elastic.TensorFlowState(stack.weights)
    found = {"kept": [], "restored": []}
    for number, (way, state) in enumerate([*ways, ("commit", weights)]):
        train(number)
        assert differs() == np.inf
        getattr(state, way)()
        found["kept"].append(differs())
    for state in (ours, plain, keras):
        state.commit()
        kept = [value.numpy() for value in every]
        train(0)
        state.restore()
        found["restored"] += [
            bool((a.numpy() == b).all()) for a, b in zip(every, kept, strict=True)
        ]
        for expected, value in zip(wanted, kept, strict=True):
            expected.assign(value)
        step.synchronize_variables()
        state.restore()
    return found


def broadcast_after_batches():
    """Broadcasts variables after the first batch, as Horovod's examples do, from either rank."""
    stack, alone = Stack(), Stack()
    every, wanted = [*stack.weights, *stack.momenta], [*alone.weights, *alone.momenta]
    step = tf_libra.optimize(in_stages(2))(tf.function(stack.step))
    differences = []
    for number, options in enumerate(({}, {"inplace": True}, {})):
        joint = batch(number)
        step(*map(harness.own, joint))
        alone.step(*joint)
        hvd.broadcast_variables(every, root_rank=number % 2, **options)
        differences += [
            float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(every, wanted, strict=True)
        ]
    return {"differ": max(differences)}


if harness.SIZE == 2:
    cases.add("committed", committed)
    cases.add("gone", gone)
    cases.add("ends", ends)
    cases.add("in_turns", in_turns)
    cases.add("objects_in_turns", objects_in_turns)
    cases.add("in_turns_released", lambda: in_turns(release=True))
    cases.add("broadcast_after_batches", broadcast_after_batches)


def in_other_stages(is_trained):
    """Runs layers in another order, with which a rank would compute with stale weights."""
    stack = Stack()

    def flagged(inputs, labels, training=True, turned=False):
        weights = stack.weights[::-1] if turned else stack.weights
        run = stack.step if training else stack.loss
        return run(inputs, labels, weights)

    step = tf_libra.optimize(in_stages(2))(tf.function(flagged))
    share = [harness.own(tensor) for tensor in batch(0)]
    step(*share)
    step(*share, training=is_trained, turned=True)


if harness.SIZE == 2:
    cases.add("a_batch_not_divided", lambda: refused(models.deep, Spp(num_microbatches=3)))
    cases.add(
        "more_stages_than_layers",
        lambda: refused(models.shallow, Spp(num_microbatches=2, num_stages=2)),
    )
    cases.add(
        "more_stages_than_workers",
        lambda: refused(models.deep, Spp(num_microbatches=2, num_stages=3)),
    )
    cases.add(
        "a_layer_too_large",
        lambda: refused(models.deep, Spp(num_microbatches=2, memory_bytes=64.0)),
    )
    cases.add("a_model_without_layers", lambda: refused(models.plain, Spp(num_microbatches=2)))
    cases.add("evaluated_in_other_stages", lambda: in_other_stages(is_trained=False))
    cases.add("trained_in_other_stages", lambda: in_other_stages(is_trained=True))


def another_job():
    """Starts another job of the same processes with exchanged ranks."""
    trained = build_model(models.deep)
    first, second = (tf.function(trained.step) for _ in range(2))
    staged = tf_libra.optimize(in_stages(2))(first)
    shares = [(harness.own(images), harness.own(labels)) for images, labels in batches(4, SAMPLES)]
    staged(*shares[0])
    change_places()
    every = [*trained.variables, *trained.state, *trained.optimizer.variables]
    start = [tf.convert_to_tensor(variable).numpy() for variable in every]
    parallel = tf_libra.optimize("syneasgd", max_tuning_steps=2)(second)
    for step, share in zip((parallel, staged, parallel), shares[1:], strict=True):
        step(*share)
    expected = build_model(models.deep)
    alone = tf.function(expected.step)
    copies = [*expected.variables, *expected.state, *expected.optimizer.variables]
    for copy, value in zip(copies, start, strict=True):
        copy.assign(value)
    for images, labels in batches(4, SAMPLES)[1:]:
        alone(images, labels)
    cases.save(
        **{f"ours/{i}": tf.convert_to_tensor(variable) for i, variable in enumerate(every)},
        **{f"alone/{i}": tf.convert_to_tensor(copy) for i, copy in enumerate(copies)},
    )
    return {"rank": hvd.rank()}


def other_partners():
    """Runs two concurrent jobs of two ranks, then jobs with other partners."""
    pairs, crossed = [[0, 1], [2, 3]], [[0, 3], [2, 1]]
    weight = tf.Variable(0.0)

    def average(gradient):
        with tf.GradientTape() as tape:
            loss = weight * gradient
        weight.assign(tape.gradient(loss, weight))

    by_engine = {
        engine: tf_libra.optimize("syneasgd", engine=engine)(tf.function(average))
        for engine in ("lanes", "horovod")
    }
    mine = tf.constant(float(harness.RANK))

    def averaged(engine):
        weight.assign(0.0)
        by_engine[engine](mine)
        return float(weight)

    def summed():
        tf_libra.collectives.connect(60)
        return float(tf_libra.collectives.all_reduce(mine, [0, 1], "sum"))

    found = {}
    whole = [list(range(harness.SIZE))]
    with places_of([*pairs, *crossed, *pairs, *crossed, *whole]) as places:
        join([*pairs], places[0:2])
        found["lanes"] = [averaged("lanes")]
        join([*crossed], places[2:4])
        found["sums"] = [summed()]
        join([*pairs], places[4:6])
        found["lanes"].append(averaged("lanes"))
        found["sums"].append(summed())
        found["horovod"] = [averaged("horovod")]
        join([*crossed], places[6:8])
        found["horovod"].append(averaged("horovod"))
        found["lanes"].append(averaged("lanes"))
        join(whole, places[8:])
    return found


def change_places():
    """Ends Horovod's job and starts another, with ranks in reverse order."""
    ranks = [list(range(harness.SIZE))[::-1]]
    with places_of(ranks) as places:
        join(ranks, places)


@contextlib.contextmanager
def places_of(jobs):
    """Yields each rank's environment, by job; rank 0 runs the rendezvous."""
    with contextlib.ExitStack() as stack:
        places = []
        if hvd.rank() == 0:
            hosts = (f"localhost:{len(ranks)}" for ranks in jobs)
            places = [stack.enter_context(meeting(host, "127.0.0.1", "lo")) for host in hosts]
        yield hvd.broadcast_object(places, name="places")


def join(jobs, places):
    """Ends Horovod's job and starts others, of the given ranks of the first, in this order."""
    hvd.shutdown()
    for ranks, of_these in zip(jobs, places, strict=True):
        if harness.RANK in ranks:
            os.environ.update(of_these[ranks.index(harness.RANK)])
    hvd.init()
    harness.barrier()


def released_when_ranks_were_lost():
    """Trains a released variable that was not restored after a loss of ranks."""
    stack = Stack()
    step = tf_libra.optimize(in_stages(2, release_variables=True))(tf.function(stack.step))
    share = [harness.own(tensor) for tensor in batch(0)]
    step(*share)
    change_places()
    step(*share)


# These are last: afterwards ranks differ from those of the harness.
if harness.SIZE == 2:
    cases.add("another_job", another_job)
    cases.add("released_when_ranks_were_lost", released_when_ranks_were_lost)
if harness.SIZE == 4:
    cases.add("other_partners", other_partners)

if __name__ == "__main__":
    cases.run()
