"""Scripts written for Horovod, decorated and not, and one process alone on the joint batch."""

import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra

STEPS = 3
EDGES, THREADS = (0, 2, 4, 6), (1, 2, 1)
cases = Cases()
# Each rank by itself: what only these reduce stays a rank's own.
OWN_SETS = [hvd.ProcessSet([rank]) for rank in range(SIZE)]


def in_one(tensors: Sequence[Any]) -> Any:
    """One vector of the elements of all."""
    return tf.concat([tf.reshape(one, [-1]) for one in tensors], 0)


def apart(vector: Any, like: Sequence[Any]) -> list[Any]:
    """The tensors of these shapes that `in_one` has made a vector of."""
    parts = tf.split(vector, [tf.size(one) for one in like])
    return [tf.reshape(part, one.shape) for part, one in zip(parts, like, strict=True)]


class Script(models.HandWritten):
    """A step in the usual shape; subclasses say how Horovod averages."""

    def __init__(self) -> None:
        super().__init__("float64", "sgd")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        tape = self.wrapped(tape)
        self.update(self.averaged(tape.gradient(loss, self.variables)))
        return self.shown(loss)

    def wrapped(self, tape: Any) -> Any:
        return tape

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return gradients

    def shown(self, loss: tf.Tensor) -> tf.Tensor:
        return loss


class Tape(Script):
    options: dict[str, Any] = {}  # noqa: RUF012

    def wrapped(self, tape: Any) -> Any:
        return hvd.DistributedGradientTape(tape, **self.options)


class TapeOfSums(Tape):
    options = {"op": hvd.Sum}  # noqa: RUF012


class PredividingTape(Tape):
    options = {"gradient_predivide_factor": 2.0}  # noqa: RUF012


class GroupingTape(Tape):
    options = {"num_groups": 2}  # noqa: RUF012


class CompressingTape(Tape):
    options = {"compression": hvd.Compression.fp16}  # noqa: RUF012
    wire_dtype = "float16"


class TapeWithLocalSource(Tape):
    def wrapped(self, tape: Any) -> Any:
        tape = super().wrapped(tape)
        tape.register_local_source(self.variables[-1])
        return tape

    def planned(self, variables: Sequence[Any]) -> Sequence[Any]:
        return variables[:-1]


class PerturbedTape(Tape):
    """Sharpness-aware: a gradient of this rank's alone leads to where the averaged one is taken."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        moves = [0.05 * gradient for gradient in tape.gradient(loss, self.variables)]
        for variable, move in zip(self.variables, moves, strict=True):
            variable.assign_add(move)
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        gradients = self.wrapped(tape).gradient(loss, self.variables)
        for variable, move in zip(self.variables, moves, strict=True):
            variable.assign_sub(move)
        self.update(gradients)
        return loss


class Each(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [hvd.allreduce(gradient) for gradient in gradients]


class EachScaled(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [
            hvd.allreduce(one, op=hvd.Sum, prescale_factor=0.25, postscale_factor=2.0)
            for one in gradients
        ]


class EachCompressed(Script):
    wire_dtype = "float16"

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [hvd.allreduce(one, compression=hvd.Compression.fp16) for one in gradients]


class EachClipped(Script):
    """Every rank clips its own gradients before they are averaged."""

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.05)
        return [hvd.allreduce(gradient) for gradient in clipped]


class EachWithMaxima(Each):
    """Shows the maximum of each gradient over ranks, in addition to averaging it."""

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        self.largest = [hvd.allreduce(gradient, op=hvd.Max) for gradient in gradients]
        return super().averaged(gradients)

    def shown(self, loss: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.reduce_max(one) for one in self.largest])


class PartlyInProcessSet(Script):
    """One layer is each rank's own, as an expert would be."""

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        own, *shared = gradients
        own = hvd.allreduce(own, process_set=OWN_SETS[RANK])
        return [own, *map(hvd.allreduce, shared)]

    def planned(self, variables: Sequence[Any]) -> Sequence[Any]:
        return variables[1:]


class TapeOfMinima(Tape):
    options = {"op": hvd.Min}  # noqa: RUF012


class TapeOfMaxima(Tape):
    options = {"op": hvd.Max}  # noqa: RUF012


class TapeOfProducts(Tape):
    options = {"op": hvd.Product}  # noqa: RUF012


class TapeByAdasum(Tape):
    options = {"op": hvd.Adasum}  # noqa: RUF012


class TapeInProcessSet(Tape):
    options = {"process_set": OWN_SETS[RANK]}  # noqa: RUF012


class EachByAdasum(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [hvd.allreduce(gradient, op=hvd.Adasum) for gradient in gradients]


class EachInProcessSet(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [hvd.allreduce(one, process_set=OWN_SETS[RANK]) for one in gradients]


class GroupedInProcessSet(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return hvd.grouped_allreduce(gradients, process_set=OWN_SETS[RANK])


class InOneVector(Script):
    """Every rank clips all of its gradients by their norm, and all are averaged together."""

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        vector = in_one(gradients)
        vector = hvd.allreduce(vector / tf.maximum(tf.norm(vector), 0.05))
        return apart(vector, gradients)


class OfLargest(Script):
    """Each rank sends the largest elements alone, and keeps the rest for the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = [tf.Variable(tf.zeros_like(one), trainable=False) for one in self.variables]

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        sums = []
        for gradient, rest in zip(gradients, self.rest, strict=True):
            whole = tf.reshape(gradient + rest, [-1])
            size = whole.shape.num_elements()
            _, places = tf.math.top_k(tf.abs(whole), max(1, size // 3))
            largest = tf.gather(whole, places)
            sent = tf.math.unsorted_segment_sum(largest, places, size)
            rest.assign(tf.reshape(whole - sent, gradient.shape))
            largest, places = hvd.allgather(largest), hvd.allgather(places)
            total = tf.math.unsorted_segment_sum(largest, places, size)
            sums.append(tf.reshape(total / SIZE, gradient.shape))
        return sums


class Scattered(Script):
    """Each rank keeps the momenta of its share of all elements, which began as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.size = sum(one.shape.num_elements() for one in self.variables)
        share = -(-self.size // SIZE)
        start = np.random.default_rng(5).normal(size=share * SIZE)[RANK * share :][:share]
        self.momenta = tf.Variable(0.01 * start, trainable=False, name="momenta")

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        padding = SIZE * self.momenta.shape[0] - self.size
        vector = tf.pad(in_one(gradients), [[0, padding]])
        share = hvd.reducescatter(vector, op=hvd.Average)
        self.momenta.assign(0.9 * self.momenta + share)
        return apart(hvd.allgather(self.momenta)[: self.size], gradients)


class Grouped(Script):
    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return hvd.grouped_allreduce(gradients)


class WithFigures(Script):
    """Averaged by us; Horovod averages what is shown."""

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        self.norm = hvd.allreduce(tf.linalg.global_norm(gradients))
        return gradients

    def shown(self, loss: tf.Tensor) -> tf.Tensor:
        return tf.stack([hvd.allreduce(loss), self.norm])


class GroupedWithFigures(Grouped):
    def shown(self, loss: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(loss, op=hvd.Sum)


class Version1Optimizer(Script):
    """A `tf.compat.v1` optimizer, which Horovod wraps without Keras."""

    def __init__(self) -> None:
        super().__init__()
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        self.optimizer = hvd.DistributedOptimizer(optimizer)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        pairs = self.optimizer.compute_gradients(
            lambda: self.loss(inputs, labels), var_list=self.variables
        )
        self.optimizer.apply_gradients(pairs)
        return self.loss(inputs, labels)


class Looked(Script):
    """Looks rows up in a table, whose gradient is `IndexedSlices`."""

    def __init__(self) -> None:
        super().__init__()
        table = np.random.default_rng(11).normal(size=(models.CLASSES, models.FEATURES))
        self.table = tf.Variable(table, name="table")
        self.variables = [self.table, *self.variables]

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        inputs = inputs + tf.gather(self.table, labels)
        layers, self.variables = self.variables, self.variables[1:]
        try:
            return super().loss(inputs, labels)
        finally:
            self.variables = layers

    def planned(self, variables: Sequence[Any]) -> Sequence[Any]:
        """Horovod gathers slices, which is not for us to plan."""
        return variables[1:]

    def update(self, gradients: Sequence[Any]) -> None:
        super().update([tf.convert_to_tensor(gradient) for gradient in gradients])


class LookedByTape(Looked, Tape):
    pass


class LookedByDenseTape(Looked, Tape):
    options = {"sparse_as_dense": True}  # noqa: RUF012

    def planned(self, variables: Sequence[Any]) -> Sequence[Any]:
        return variables


class LookedByEach(Looked, Each):
    pass


class LookedGrouped(Looked, Grouped):
    pass


class KerasTape(models.Keras):
    """Keras 3, which Horovod's tape cannot do by itself."""

    def __init__(self) -> None:
        super().__init__("float64", "sgd")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = models.cross_entropy(labels, self.model(inputs, training=True))
        variables = self.model.trainable_variables
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss


class KerasEach(models.Keras):
    def __init__(self) -> None:
        super().__init__("float64", "adam")

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = models.cross_entropy(labels, self.model(inputs, training=True))
        variables = self.model.trainable_variables
        gradients = [hvd.allreduce(g) for g in tape.gradient(loss, variables)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss


class KerasOptimizer(models.Keras):
    """Horovod's wrapper around an optimizer of Keras 3, which by itself averages nothing."""

    def __init__(self) -> None:
        super().__init__("float64", "sgd")
        self.optimizer = hvd.DistributedOptimizer(self.optimizer)


def train(step: Any, model: Any, whole: bool) -> tuple[dict[str, Any], Any]:
    """Weights at the end, and what the last step has shown."""
    shown = None
    for number in range(STEPS):
        joint = models.batch(number, SIZE, "float64")
        shown = step(*(joint if whole else models.part(joint, RANK, SIZE)))
    return model.weights(), np.asarray(shown)


def plan_for(model: Any) -> Any:
    """Three groups of what is to be planned, which `planned` and `wire_dtype` may change."""
    trained = getattr(model, "model", None)
    variables = model.variables if trained is None else trained.trainable_variables
    chosen = getattr(model, "planned", lambda variables: variables)(variables)
    edges = sorted({*EDGES[:-1], len(chosen)})
    return models.plan_of(chosen, SIZE, edges, THREADS, dtype=getattr(model, "wire_dtype", None))


def compare(kind: Any, alone: Any = None, plain: Any = None) -> Any:
    """Trains under a plan, without the decorator, and, where that is to be equal, alone."""
    saved = {}
    if alone is not None:
        model = alone()
        weights, _ = train(model.step, model, whole=True)
        saved |= {f"alone/{name}": value for name, value in weights.items()}
    if plain is not None:
        model = plain()
        weights, shown = train(tf.function(model.step), model, whole=False)
        saved |= {f"plain/{name}": value for name, value in weights.items()}
        saved["shown/plain"] = shown
    model = kind()
    plan = plan_for(model)
    step = tf_libra.optimize(plan=plan)(tf.function(model.step))
    weights, shown = train(step, model, whole=False)
    saved |= {f"ours/{name}": value for name, value in weights.items()}
    saved["shown/ours"] = shown
    cases.save(**saved)
    return {"phase": str(step.phase), "groups": len(step.plan.groups)}


def compare_unplanned(kind: Any) -> Any:
    """Trains as the script says, without the decorator and with it: there is nothing to plan."""
    model = kind()
    weights, _ = train(tf.function(model.step), model, whole=False)
    saved = {f"plain/{name}": value for name, value in weights.items()}
    result = train_unplanned(kind)
    model = result.pop("model")
    cases.save(**saved, **{f"ours/{name}": value for name, value in model.weights().items()})
    return result


def train_unplanned(kind: Any) -> Any:
    model = kind()
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    train(step, model, whole=False)
    planned = step.plan is not None
    if kind in RESHAPED.values():  # the ranks of a process set train apart
        step.check_variables()
    return {"model": model, "phase": step.phase, "planned": planned, "explained": step.explain()}


SAME_AS_ALONE = {
    "tape": Tape,
    "predividing_tape": PredividingTape,
    "grouping_tape": GroupingTape,
    "each": Each,
    "each_with_maxima": EachWithMaxima,
    "grouped": Grouped,
    "grouped_with_figures": GroupedWithFigures,
    "version_1_optimizer": Version1Optimizer,
}
SAME_AS_PLAIN = {
    "tape_of_sums": TapeOfSums,
    "compressing_tape": CompressingTape,
    "tape_with_local_source": TapeWithLocalSource,
    "perturbed_tape": PerturbedTape,
    "each_scaled": EachScaled,
    "each_compressed": EachCompressed,
    "each_clipped": EachClipped,
    "partly_in_process_set": PartlyInProcessSet,
}
UNPLANNED = {
    "tape_of_minima": TapeOfMinima,
    "tape_of_maxima": TapeOfMaxima,
    "tape_of_products": TapeOfProducts,
    "tape_in_process_set": TapeInProcessSet,
    "each_in_process_set": EachInProcessSet,
    "grouped_in_process_set": GroupedInProcessSet,
}
RESHAPED = {
    "in_one_vector": InOneVector,
    "of_largest": OfLargest,
    "scattered": Scattered,
}
BY_ADASUM = {"tape_by_adasum": TapeByAdasum, "each_by_adasum": EachByAdasum}
SPARSE = {
    "looked_by_tape": LookedByTape,
    "looked_by_dense_tape": LookedByDenseTape,
    "looked_by_each": LookedByEach,
    "looked_grouped": LookedGrouped,
}


def add_all() -> None:
    for name, kind in SAME_AS_ALONE.items():
        cases.add(name, lambda kind=kind: compare(kind, alone=Script, plain=kind))
    for name, kind in SAME_AS_PLAIN.items():
        cases.add(name, lambda kind=kind: compare(kind, plain=kind))
    for name, kind in (UNPLANNED | RESHAPED).items():
        cases.add(name, lambda kind=kind: compare_unplanned(kind))
    for name, kind in BY_ADASUM.items():
        # Horovod has no Adasum without MPI.
        run = compare_unplanned if hvd.mpi_enabled() else train_unplanned
        cases.add(name, lambda run=run, kind=kind: run(kind))
    for name, kind in SPARSE.items():
        cases.add(name, lambda kind=kind: compare(kind, alone=Looked, plain=kind))
    cases.add("with_figures", lambda: compare(WithFigures, alone=Script))
    keras = {
        "keras_tape": (KerasTape, "sgd"),
        "keras_each": (KerasEach, "adam"),
        "keras_optimizer": (KerasOptimizer, "sgd"),
    }
    for name, (kind, optimizer) in keras.items():
        alone = lambda optimizer=optimizer: models.Keras("float64", optimizer)  # noqa: E731
        cases.add(name, lambda kind=kind, alone=alone: compare(kind, alone=alone))


@cases
def some_only() -> Any:
    class Some(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(gradients[0]), *gradients[1:]]

    compare(Some)


@cases
def averaged_in_a_function() -> Any:
    class Apart(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return self.apart(list(gradients))

        @tf.function
        def apart(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(gradient, op=hvd.Sum) for gradient in gradients]

    compare(Apart)


@cases
def computed_in_a_function() -> Any:
    class Apart(Script):
        @tf.function
        def gradients(self, inputs: tf.Tensor, labels: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(inputs, labels)
            return tape.gradient(loss, self.variables)

        def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            self.update(hvd.grouped_allreduce(self.gradients(inputs, labels)))
            return tf.zeros([])

    compare(Apart)


@cases
def scalar_of_a_scalar() -> Any:
    class One(Script):
        def __init__(self) -> None:
            super().__init__()
            self.variables = [tf.Variable(np.ones(()), name="one")]

        def loss(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(inputs * self.variables[0])

        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            return [hvd.allreduce(2 * gradient) for gradient in gradients]

    model = One()
    tf_libra.optimize("wfbp")(tf.function(model.step))(
        *models.part(models.batch(0, SIZE, "float64"), RANK, SIZE)
    )


@cases
def shown_maxima() -> Any:
    class Shown(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            self.largest = [hvd.allreduce(gradient, op=hvd.Max) for gradient in gradients]
            return gradients

    train_unplanned(Shown)


@cases
def shown_finite() -> Any:
    class Shown(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            finite = [tf.cast(tf.math.is_finite(gradient), tf.int32) for gradient in gradients]
            self.finite = [hvd.allreduce(one, op=hvd.Sum) for one in finite]
            return gradients

    train_unplanned(Shown)


@cases
def adasum_of_changes() -> Any:
    class Changes(Script):
        def update(self, gradients: Sequence[Any]) -> None:
            before = [tf.identity(variable) for variable in self.variables]
            super().update(gradients)
            for variable, start in zip(self.variables, before, strict=True):
                variable.assign(start + hvd.allreduce(variable - start, op=hvd.Adasum))

    train_unplanned(Changes)


@cases
def averages_of_weights() -> Any:
    class Weights(Script):
        def update(self, gradients: Sequence[Any]) -> None:
            super().update(gradients)
            for variable in self.variables:
                variable.assign(hvd.allreduce(variable))

    train_unplanned(Weights)


@cases
def averages_of_changes() -> Any:
    """In one vector, and added to the weights at the start, which are kept in a variable."""

    class Changes(Script):
        def __init__(self) -> None:
            super().__init__()
            self.starts = [tf.Variable(one, trainable=False) for one in self.variables]

        def update(self, gradients: Sequence[Any]) -> None:
            super().update(gradients)
            pairs = list(zip(self.variables, self.starts, strict=True))
            vector = hvd.allreduce(in_one([a - b for a, b in pairs]))
            for (variable, start), change in zip(pairs, apart(vector, self.starts), strict=True):
                variable.assign(start + change)

    train_unplanned(Changes)


@cases
def norms_of_each_as_rates() -> Any:
    class Rates(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            norms = hvd.allreduce(tf.stack([tf.norm(one) for one in gradients]))
            return [one / norms[i] for i, one in enumerate(gradients)]

    train_unplanned(Rates)


class Flagged(Script):
    """A flag of Python's says whether the tape averages: in between, each rank trains alone."""

    def step(self, inputs: tf.Tensor, labels: tf.Tensor, averages: bool) -> None:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        tape = hvd.DistributedGradientTape(tape) if averages else tape
        self.update(tape.gradient(loss, self.variables))


def train_flagged(step: Any, order: Sequence[bool]) -> None:
    for number, averages in enumerate(order):
        step(*models.part(models.batch(number, SIZE, "float64"), RANK, SIZE), averages)


@cases
def local_steps_by_a_flag() -> Any:
    plain, ours = Flagged(), Flagged()
    order = [True, False, False] * 4
    train_flagged(tf.function(plain.step), order)
    step = tf_libra.optimize("wfbp", max_tuning_steps=3)(tf.function(ours.step))
    train_flagged(step, order)
    saved = {f"plain/{name}": value for name, value in plain.weights().items()}
    cases.save(**saved, **{f"ours/{name}": value for name, value in ours.weights().items()})
    return {"phase": str(step.phase)}


@cases
def local_steps_by_a_flag_at_first() -> Any:
    train_flagged(tf_libra.optimize("wfbp")(tf.function(Flagged().step)), [False, False, True])


@cases
def process_set_on_one_rank() -> Any:
    class OnOne(Script):
        def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
            if RANK == 0:
                return [hvd.allreduce(one, process_set=OWN_SETS[0]) for one in gradients]
            return gradients

    train_unplanned(OnOne)


@cases
def called_by_a_strategy() -> Any:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = Script()
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    strategy.run(step, args=models.part(models.batch(0, SIZE, "float64"), RANK, SIZE))


@cases
def calls_a_strategy() -> Any:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = Script()

    @tf_libra.optimize("wfbp")
    @tf.function
    def distributed_step(inputs: tf.Tensor, labels: tf.Tensor) -> Any:
        return strategy.run(model.step, args=(inputs, labels))

    distributed_step(*models.part(models.batch(0, SIZE, "float64"), RANK, SIZE))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hvd.init(process_sets=OWN_SETS)
    add_all()
    cases.run()
