"""Training steps that Horovod's tapes, ops and optimizers average."""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases
from horovod.tensorflow import compression

STEPS = 3
EDGES, THREADS = (0, 2, 4, 6), (1, 2, 1)
cases = Cases()
# Each rank by itself: what only these reduce stays a rank's own.
OWN_SETS = [hvd.ProcessSet([rank]) for rank in range(SIZE)]


def in_one(tensors: Sequence[Any]) -> Any:
    """One vector of the elements of all."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def apart(vector: Any, like: Sequence[Any]) -> list[Any]:
    """The tensors of these shapes that `in_one` has made a vector of."""
    parts = tf.split(vector, [tf.size(gradient) for gradient in like])
    return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, like, strict=True)]


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


class BFloat16Compressor(compression.Compressor):
    """Casts as `hvd.Compression.fp16` does, as a script may write it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tf.cast(tensor, tf.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class TapeOfFloat32(Tape):
    """Trains float32 variables; Horovod's tape compresses their gradients, or not."""

    def __init__(self, compressor: Any) -> None:
        models.HandWritten.__init__(self, "float32", "sgd")
        self.options = {"compression": compressor}


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
            hvd.allreduce(gradient, op=hvd.Sum, prescale_factor=0.25, postscale_factor=2.0)
            for gradient in gradients
        ]


class EachCompressed(Script):
    wire_dtype = "float16"

    def averaged(self, gradients: Sequence[Any]) -> Sequence[Any]:
        return [hvd.allreduce(gradient, compression=hvd.Compression.fp16) for gradient in gradients]


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
        return tf.stack([tf.reduce_max(value) for value in self.largest])


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
        return [hvd.allreduce(gradient, process_set=OWN_SETS[RANK]) for gradient in gradients]


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
        self.rest = [
            tf.Variable(tf.zeros_like(variable), trainable=False) for variable in self.variables
        ]

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
        self.size = sum(variable.shape.num_elements() for variable in self.variables)
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
