"""Sends, receives and collectives of sets of ranks, eagerly and in functions, with gradients."""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases, barrier

from tf_libra import collectives
from tf_libra.backends import engine as engine_lib

cases = Cases()
ALL = list(range(SIZE))
MEBI = 1 << 20


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """As it is, and as a function of TensorFlow."""
    return [function, tf.function(function)]


def numbers(rank: int, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """A rank's tensor, which every rank can work out."""
    values = np.random.default_rng(rank).integers(-8, 8, size=tuple(shape))
    return values.astype(tf.as_dtype(dtype).as_numpy_dtype)


def close(found: Any, expected: Any) -> bool:
    """Returns whether both are of the same shape and, but for the last digits, the same values."""
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and bool(np.allclose(found, expected, 1e-5, 1e-5))


@cases
def messages_of_every_dtype() -> Any:
    collectives.connect(timeout_seconds=60)
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    found = {}
    names = (
        "float16 bfloat16 float32 float64 bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"
    )
    shapes: Sequence[list[int]] = ([], [0, 3], [5], [2, 3, 4])

    def exchange(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        for index, tensor in enumerate(tensors):
            collectives.send(tensor, after, f"x{index}")
        return [
            collectives.receive(tensor.dtype, tensor.shape, before, f"x{index}")
            for index, tensor in enumerate(tensors)
        ]

    for dtype in names.split():
        for number, call in enumerate(both(exchange)):
            values = call([tf.constant(numbers(RANK, shape, dtype)) for shape in shapes])
            for shape, got in zip(shapes, values, strict=True):
                same = np.array_equal(got.numpy(), numbers(before, shape, dtype))
                found[f"{dtype} {shape} {number}"] = same and got.dtype.name == dtype
    return found


def every_collective(ranks: list[int], root: int, tensor: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
        "sum": collectives.all_reduce(tensor, ranks, "a"),
        "average": collectives.all_reduce(tensor, ranks, "b", op="average"),
        "scatter": collectives.reduce_scatter(tensor, ranks, "c"),
        "gather": collectives.all_gather(tensor, ranks, "d"),
        "broadcast": collectives.broadcast(tensor, root, ranks, "e"),
        "reduce": collectives.reduce(tensor, root, ranks, "f"),
    }


@cases
def collectives_of_every_set() -> Any:
    collectives.connect(timeout_seconds=60)
    found = {}
    for ranks in ([0], [1, 0], ALL[::2], ALL, ALL[::-1]):
        if RANK not in ranks:
            continue  # and waits for no other rank
        n, place = len(ranks), ranks.index(RANK)
        root = ranks[-1]
        for dtype in ("float32", "float64", "bfloat16", "float16"):
            shape = [n * 2, 3]
            inputs = [numbers(rank, shape, dtype) for rank in ranks]
            total = np.sum([input_.astype("float64") for input_ in inputs], axis=0)
            part = slice(place * 2, place * 2 + 2)
            expected = {
                "sum": total,
                "average": total / n,
                "scatter": total[part],
                "gather": np.concatenate(inputs),
                "broadcast": inputs[-1],
                "reduce": total if root == RANK else 0 * total,
            }
            calls = partial(every_collective, ranks, root)
            for number, call in enumerate(both(calls)):
                for name, value in call(tf.constant(inputs[place])).items():
                    got = tf.cast(value, tf.float64)
                    wanted = np.asarray(expected[name], "float64")
                    tolerance = 1e-2 if "16" in dtype else 1e-6
                    key = f"{name} {ranks} {dtype} {number}"
                    found[key] = bool(np.allclose(got, wanted, tolerance, tolerance))
    return found


@cases
def integers_are_gathered_and_broadcast() -> Any:
    collectives.connect(timeout_seconds=60)
    mine = tf.constant(numbers(RANK, [2], "int64"))
    gathered = collectives.all_gather(mine, ALL, "labels")
    everyone = collectives.broadcast(mine, 1, ALL, "seed")
    return [
        np.array_equal(gathered, np.concatenate([numbers(rank, [2], "int64") for rank in ALL])),
        np.array_equal(everyone, numbers(1, [2], "int64")),
    ]


@cases
def any_order_in_a_function() -> Any:
    """Every two ranks exchange megabytes both ways, begun in another order on each rank."""
    collectives.connect(timeout_seconds=60)
    peers = [rank for rank in ALL if rank != RANK]

    def name(sender: int, receiver: int, number: int) -> str:
        return f"{sender} to {receiver}, {number}"

    def step(seed: int, tensors: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        order = [(way, peer, n) for way in "sr" for peer in peers for n in range(4)]
        random.Random(seed).shuffle(order)
        received = {}
        for way, peer, n in order:
            if way == "s":
                collectives.send(tensors[n], peer, name(RANK, peer, n))
            else:
                key = name(peer, RANK, n)
                received[key] = collectives.receive(tf.float32, [MEBI >> n], peer, key)
        return received

    good = []
    for number in range(3):
        tensors = [tf.fill([MEBI >> n], float(RANK * 10 + n + number)) for n in range(4)]
        received = tf.function(step)(100 * number + RANK, tensors)
        for peer in peers:
            for n in range(4):
                value = received[name(peer, RANK, n)]
                good.append(bool(tf.reduce_all(value == float(peer * 10 + n + number))))
    return good


@cases
def stages_of_a_pipeline() -> Any:
    """Sends activations forward and gradients back concurrently, in large microbatches."""
    collectives.connect(timeout_seconds=60)
    weight = tf.Variable(2.0 + RANK)
    batches = [tf.fill([MEBI], 1.0 + n) for n in range(4)]

    @tf.function
    def step() -> tf.Tensor:
        gradients = []
        for n, batch in enumerate(batches):
            with tf.GradientTape() as tape:
                x = batch
                if RANK > 0:
                    x = collectives.receive(tf.float32, [MEBI], RANK - 1, f"h{n}")
                y = weight * x
                if RANK < SIZE - 1:
                    target = collectives.send(y, RANK + 1, f"h{n}")
                else:
                    target = tf.reduce_mean(y * y)
            gradients.append(tape.gradient(target, weight))
        return tf.add_n(gradients)

    product = float(np.prod([2.0 + rank for rank in ALL]))
    expected = sum(2 * (product * (1.0 + n)) ** 2 / (2.0 + RANK) for n in range(4))
    return [close(step(), expected) for _ in range(3)]


def weighted(value: tf.Tensor, rank: int) -> tf.Tensor:
    """A rank's part of the loss, linear in its input."""
    return tf.reduce_sum(value * numbers(10 + rank, value.shape))


@cases
def gradients_of_collectives() -> Any:
    """The loss is the sum of all ranks' parts, differentiated by each rank's own input."""
    collectives.connect(timeout_seconds=60)
    shape = [2 * SIZE, 3]
    weights = [numbers(10 + rank, shape) for rank in ALL]
    parts = np.concatenate([numbers(10 + rank, [2, 3]) for rank in ALL])
    gathered = [numbers(10 + rank, [2 * SIZE * SIZE, 3]) for rank in ALL]
    place = slice(2 * SIZE * RANK, 2 * SIZE * (RANK + 1))
    calls: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "sum": (lambda x: collectives.all_reduce(x, ALL, "a"), sum(weights)),
        "average": (lambda x: collectives.all_reduce(x, ALL, "b", "average"), sum(weights) / SIZE),
        "scatter": (lambda x: collectives.reduce_scatter(x, ALL, "c"), parts),
        "scatter average": (
            lambda x: collectives.reduce_scatter(x, ALL, "d", "average"),
            parts / SIZE,
        ),
        "gather": (lambda x: collectives.all_gather(x, ALL, "e"), sum(gathered)[place]),
        "broadcast": (
            lambda x: collectives.broadcast(x, 1, ALL, "f"),
            sum(weights) if RANK == 1 else np.zeros(shape),
        ),
        "reduce": (lambda x: collectives.reduce(x, 1, ALL, "g"), weights[1]),
        "reduce average": (
            lambda x: collectives.reduce(x, 1, ALL, "h", "average"),
            weights[1] / SIZE,
        ),
    }
    found = {}
    for name, (function, expected) in calls.items():

        def differentiate(x: tf.Tensor, function: Callable[[Any], Any] = function) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = weighted(function(x), RANK)
            return tape.gradient(loss, x)

        def in_graph(x: tf.Tensor, function: Callable[[Any], Any] = function) -> tf.Tensor:
            return tf.gradients(weighted(function(x), RANK), x)[0]

        for number, call in enumerate([*both(differentiate), tf.function(in_graph)]):
            got = call(tf.constant(numbers(RANK, shape)))
            found[f"{name} {number}"] = close(got, expected)
    return found


@cases
def gradient_that_stays() -> Any:
    """A stopped gradient sends no message, and the sender does not differentiate."""
    collectives.connect(timeout_seconds=60)
    with tf.GradientTape() as tape:
        weight = tf.Variable(3.0)
        collectives.send(weight * 2.0, (RANK + 1) % SIZE, "x")
        received = collectives.receive(tf.float32, [], (RANK - 1) % SIZE, "x")
        loss = weight * tf.stop_gradient(received)
    return float(tape.gradient(loss, weight))


@cases
def gradient_with_an_anchor() -> Any:
    """A tape that watches no variables by itself, around a function."""
    collectives.connect(timeout_seconds=60)
    anchor, x = tf.constant(0.0), tf.constant(5.0)

    @tf.function
    def product(x: tf.Tensor, anchor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sent = collectives.send(x * x, (RANK + 1) % SIZE, "x")
        received = collectives.receive(tf.float32, [], (RANK - 1) % SIZE, "x", anchor=anchor)
        return sent, 3.0 * received

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([anchor, x])
        targets = product(x, anchor)
    return [float(gradient) for gradient in tape.gradient(targets, [x, anchor])]


@cases
def in_a_loop() -> Any:
    """Rank after rank, as often as the others; and shapes that only the run knows."""
    collectives.connect(timeout_seconds=60)

    @tf.function
    def loop(times: tf.Tensor) -> tf.Tensor:
        value = tf.ones([times]) * tf.cast(RANK + 1, tf.float32)
        for _ in tf.range(times):
            collectives.send(value, (RANK + 1) % SIZE, "x")
            value = collectives.receive(tf.float32, tf.shape(value), (RANK - 1) % SIZE, "x")
            value.set_shape([None])
            value += collectives.all_reduce(value, ALL, "y")
        return value

    def expected(times: int) -> float:
        values = [float(rank + 1) for rank in ALL]
        for _ in range(times):
            values = values[-1:] + values[:-1]
            values = [value + sum(values) for value in values]
        return values[RANK]

    return [
        close(loop(tf.constant(times)), np.full([times], expected(times))) for times in (1, 4, 7)
    ]


@cases
def last_tensor_of_a_rank() -> Any:
    """Sent, and received when its sender has closed its engine."""
    collectives.connect(timeout_seconds=60)
    if RANK == 0:
        collectives.send(tf.fill([MEBI], 7.0), 1, "last")
        running = engine_lib.running()
        assert running is not None
        running.close()
    if RANK == 1:
        value = collectives.receive(tf.float32, [MEBI], 0, "last")
        return bool(tf.reduce_all(value == 7.0))
    return True


@cases
def arguments_that_cannot_be() -> Any:
    collectives.connect(timeout_seconds=60)
    x = tf.zeros([3, 2])
    bad: dict[str, Callable[[], Any]] = {
        "self": lambda: collectives.send(x, RANK, "x"),
        "far": lambda: collectives.receive(tf.float32, [], SIZE, "x"),
        "negative": lambda: collectives.send(x, -1, "x"),
        "name": lambda: collectives.send(x, (RANK + 1) % SIZE, ""),
        "shape": lambda: collectives.receive(tf.float32, [None, 2], (RANK + 1) % SIZE, "x"),
        "twice": lambda: collectives.all_reduce(x, [*ALL, RANK], "x"),
        "outside": lambda: collectives.all_reduce(x, [r for r in ALL if r != RANK], "x"),
        "none": lambda: collectives.all_gather(x, [], "x"),
        "root": lambda: collectives.broadcast(x, SIZE, ALL, "x"),
        "op": lambda: collectives.all_reduce(x, ALL, "x", op="maximum"),
        "dtype": lambda: collectives.all_reduce(tf.constant([1]), ALL, "x"),
        "uneven": lambda: collectives.reduce_scatter(tf.zeros([SIZE + 1]), ALL, "x"),
        "scalar": lambda: collectives.all_gather(tf.zeros([]), ALL, "x"),
    }
    reported = {}
    for name, call in bad.items():
        try:
            call()
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            reported[name] = str(error)
    return {**reported, "works still": close(collectives.all_reduce(x, ALL, "x"), np.zeros([3, 2]))}


@cases
def other_shape() -> None:
    collectives.connect(timeout_seconds=60)
    if RANK == 0:
        collectives.send(tf.zeros([2, 3]), 1, "h")
        collectives.receive(tf.float32, [], 1, "never")
    elif RANK == 1:
        collectives.receive(tf.float32, [3, 2], 0, "h")
    else:
        collectives.receive(tf.float32, [], 0, "never")


@cases
def other_collective() -> None:
    collectives.connect(timeout_seconds=60)
    if RANK == 0:
        collectives.all_gather(tf.zeros([2]), ALL, "g")
    else:
        collectives.all_reduce(tf.zeros([2]), ALL, "g")


@cases
def other_name() -> None:
    collectives.connect(timeout_seconds=3)
    if RANK == 0:
        collectives.send(tf.zeros([2]), 1, "activation")
    if RANK == 1:
        collectives.receive(tf.float32, [2], 0, "activations")
    # The others have no part in it, and learn of it, before they have waited for as long.
    if RANK > 1:
        time.sleep(1)
    tf.function(lambda: collectives.all_reduce(tf.zeros([1]), ALL, "later"))()


@cases
def step_that_fails() -> None:
    """On rank 0, which waits for rank 1, which waits for rank 0."""
    collectives.connect(timeout_seconds=60)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        peer = 1 - RANK
        received = collectives.receive(tf.float32, [], peer, "x")
        # Rank 1 sends once it has received: else rank 0 might wait no more when it fails.
        x = tf.debugging.check_numerics(x, "bad input") if RANK == 0 else received
        with tf.control_dependencies([x]):
            collectives.send(tf.identity(x), peer, "x")
        return received

    if RANK < 2:
        step(tf.constant(float("nan")))


if __name__ == "__main__":
    hvd.init()
    cases.run()
    barrier()
