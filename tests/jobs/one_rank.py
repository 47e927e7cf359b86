"""Cases of steps on one rank: results, variables, reads by single ranks, and other functions."""

import contextlib
import gc
from unittest import mock

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from one_rank_steps import LAST, SAMPLES, cases, every_value, own, slowed
from staged import refused  # also lets modules of the tests be found

import tf_libra
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model, burst_layer_names, make_burst_plan
from tf_libra.backends import collective_ops
from tf_libra.coordination import control_plane
from tf_libra.model_parallel.execution.transport import LanesTransport
from tf_libra.model_parallel.profiling import link_benchmark
from tf_libra.runtime.step_hooks import around_wait
from tf_libra.strategies import DeepPool, OneRank, Spp

hvd.init()
MODELS = (models.mlp, models.convolutional, models.sparsely_embedded, models.normalized)


def plain(result):
    return {name: np.array(value).tolist() for name, value in result.items()}


def measured_links():
    """Measures links, as if each rank had a host of its own, and again as they are, once."""
    [control] = control_plane.running()
    transport = LanesTransport(harness.RANK, "links", around_wait)
    with mock.patch.object(link_benchmark, "host_identity", lambda: str(harness.RANK)):
        found = link_benchmark.measured_links(transport, control)
    first, again = (link_benchmark.links_of_job(transport, control) for _ in range(2))
    assert again is first
    link_benchmark.forget_links()
    assert link_benchmark.links_of_job(transport, control) is not first
    return [(links.cluster.bytes_per_second, links.latency_seconds) for links in (found, first)]


def measured():
    """Measures every rank for three steps, and trains two more. Rank 0 is slow."""
    trained = build_model(models.mlp)
    step = tf_libra.optimize("one-rank")(tf.function(trained.step))
    returned, phases, settled = [], [], []
    with slowed(0):
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
        "links": measured_links(),
    }


def given(make):
    """Reads variables on all ranks, without synchronization, and saves them on rank 0 alone."""
    trained = build_model(make)
    step = tf_libra.optimize(OneRank(rank=0))(tf.function(trained.step))
    returned = [plain(step(*own(batch))) for batch in batches(3, SAMPLES)]
    before_sync = every_value(trained)
    if harness.RANK == 0:
        checkpoint = tf.train.Checkpoint(variables=trained.variables)
        path = checkpoint.write(str(harness.FOLDER / f"{make.__name__}.checkpoint"))
        for variable in trained.variables:
            variable.assign(tf.zeros_like(variable))
        checkpoint.read(path).assert_consumed()
        reread = every_value(trained)
        assert all(np.array_equal(reread[name], value) for name, value in before_sync.items())
    step.synchronize_variables()
    values = every_value(trained)
    equal = all(np.array_equal(values[name], value) for name, value in before_sync.items())
    cases.save(**values)
    return {"returned": returned, "was_current": equal}


def read_alone(what, strategy, readers, **options):
    """Reads variables on one rank alone after every step, each time by other means."""
    trained = build_model(models.mlp)
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
    plan = make_burst_plan(burst_layer_names(models.mlp), (2, 1, 2), harness.SIZE)
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


def slots_in_turn():
    """Trains by two functions, on the first and the last rank, with a slot of each Python value."""
    weight = tf.Variable([1.0, 2.0])
    slots = {name: tf.Variable(tf.zeros([2]), trainable=False) for name in "ab"}

    def train(values, name):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        slots[name].assign(0.5 * slots[name] + tape.gradient(loss, weight))
        weight.assign_sub(slots[name])
        return loss

    steps = [tf_libra.optimize(OneRank(rank=rank))(tf.function(train)) for rank in (0, LAST)]
    for number, name in ((0, "a"), (1, "a"), (0, "b"), (1, "a"), (0, "b"), (0, "a"), (1, "b")):
        steps[number](tf.ones([2, 2]), name)
    return [variable.numpy().tolist() for variable in (weight, slots["a"], slots["b"])]


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


def text_kept():
    """Changes a variable that cannot be sent."""
    weight, text = tf.Variable(1.0), tf.Variable("", trainable=False)

    @tf_libra.optimize(OneRank(rank=0))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))
        text.assign("trained")
        return loss

    step(tf.ones([2]))


def another_dtype():
    """Passes an argument of another dtype on the last rank, in a later step."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=0))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * tf.cast(values, tf.float32))
        weight.assign_sub(tape.gradient(loss, weight))

    values = tf.ones([2])
    step(values)
    step(tf.cast(values, tf.float64) if harness.RANK == LAST else values)


def failing_transfer():
    """Cannot receive on the last rank what rank 0 has trained, when all ranks train."""
    weight = tf.Variable([1.0, 2.0], name="weight")

    def train(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    strategies = OneRank(rank=0), "wfbp"
    alone, shared = (tf_libra.optimize(each)(tf.function(train)) for each in strategies)
    alone(tf.ones([2, 2]))
    broken = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, "no memory"))
    with contextlib.ExitStack() as patches:
        if harness.RANK == LAST:
            patches.enter_context(mock.patch.object(collective_ops, "received", broken))
        shared(tf.ones([2, 2]))


def another_size():
    """Passes a smaller batch on the last rank, and asks for results of own examples."""
    weight = tf.Variable(1.0)

    @tf_libra.optimize(OneRank(rank=0, results="own"))
    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * values)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    step(tf.ones([2 if harness.RANK == LAST else 4]))


cases.add("measured", measured)
for make in MODELS if harness.SIZE == 2 else MODELS[:1]:
    cases.add(f"given {make.__name__}", lambda make=make: given(make))
for case in (nothing_returned, text_returned, text_kept, another_dtype, another_size):
    cases(case)
if harness.SIZE == 2:  # more ranks change nothing
    cases(alternating)
    cases(slots_in_turn)
    cases(evaluated)
    cases(failing_transfer)
    cases.add("read on rank 0", lambda: read_alone("first", OneRank(rank=LAST), [0]))
cases.add("read on the last rank", lambda: read_alone("last", OneRank(rank=0), [LAST]))
STAGES = Spp(num_microbatches=2, num_stages=2)
cases.add("read in a pipeline", lambda: read_alone("pipeline", STAGES, [0, LAST]))
cases.add("read in bursts", read_in_bursts)
cases(changed_between)
cases(dropped)
cases.add("no such rank", lambda: refused(models.mlp, OneRank(rank=harness.SIZE)))
cases.run()
