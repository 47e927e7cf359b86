"""The sources that flow into the variables of real traces."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.sources import OWN, REDUCED, find_sources
from tf_libra.internal import native

V = tf.Variable


def reduced(tensor: Any) -> Any:
    (result,) = native.load().ops.libra_all_reduce(
        tensors=[tensor], ends=[], tensor_names=["t"], function="f"
    )
    return result


def flows(step: Callable[..., Any], *args: Any, names: dict[str, Any]) -> dict[str, str]:
    """For each variable that is written: "own", "reduced" and names of variables, sorted."""
    concrete = tf.function(step).get_concrete_function(*args)
    known = {id(variable.handle): name for name, variable in names.items()}
    first = len(concrete.inputs) - len(concrete.captured_inputs)
    inputs = {
        first + i: known[id(tensor)]
        for i, tensor in enumerate(concrete.captured_inputs)
        if id(tensor) in known
    }
    found = find_sources(traced_graph.read(concrete.graph), inputs)
    return {
        inputs[i]: " ".join(
            (["own"] if mask & OWN else [])
            + (["reduced"] if mask & REDUCED else [])
            + sorted(inputs[j] for j in found.inputs_of(mask))
        )
        for i, mask in found.writes.items()
    }


X = tf.ones([3])


def test_sources_end_at_an_all_reduce() -> None:
    w, m = V(tf.ones([3])), V(0.0)

    def step(x: Any) -> None:
        m.assign_add(tf.reduce_sum(w * x))
        w.assign_sub(reduced(w * x))

    assert flows(step, X, names={"w": w, "m": m}) == {"w": "reduced w", "m": "own m w"}


def test_sources_of_an_all_reduce_are_found() -> None:
    w, slot, rate = V(tf.ones([3])), V(tf.ones([3])), V(0.1)

    def step(x: Any) -> None:
        slot.assign(0.9 * slot + reduced(tf.function(lambda: w * x)()))
        w.assign_sub(rate * slot)

    concrete = tf.function(step).get_concrete_function(X)
    handles = [id(handle) for handle in (w.handle, slot.handle, rate.handle)]
    inputs = {
        i + 1: handles.index(id(captured_input))
        for i, captured_input in enumerate(concrete.captured_inputs)
    }
    found = find_sources(traced_graph.read(concrete.graph), inputs)
    assert [inputs[i] for i in found.inputs_of(found.averaged) if i in inputs] == [0]


def test_each_result_of_a_function_for_itself() -> None:
    w, m = V(tf.ones([3])), V(0.0)

    @tf.function
    def inner(x: Any) -> Any:
        return tf.reduce_sum(x), reduced(w * x)

    def step(x: Any) -> None:
        loss, gradient = inner(x)
        m.assign(loss)
        w.assign(gradient)

    assert flows(step, X, names={"w": w, "m": m}) == {"w": "reduced", "m": "own"}


def test_conditions_flow_into_what_they_guard() -> None:
    w, scale, other = V(tf.ones([3])), V(1.0), V(1.0)

    def step(x: Any) -> None:
        gradient = reduced(w * x)

        def update() -> Any:
            w.assign_sub(gradient)
            return scale.assign(scale * 2.0)

        tf.cond(tf.reduce_all(tf.math.is_finite(gradient)), update, lambda: scale.assign(1.0))
        tf.cond(tf.reduce_sum(x) > 0.0, lambda: other.assign(1.0), lambda: other.assign(2.0))

    found = flows(step, X, names={"w": w, "scale": scale, "other": other})
    assert found == {"w": "reduced w", "scale": "reduced scale", "other": "own"}


def test_loops_are_followed_round() -> None:
    w, last = V(tf.ones([3])), V(tf.zeros([3]))
    first, second = V(1.0), V(2.0)

    def step(x: Any) -> None:
        a, b, c = tf.constant(0.0), first.read_value(), second.read_value()
        for _ in tf.range(3):
            a, b, c = b, c, c
            w.assign_sub(reduced(w * x))
        last.assign(a * tf.ones([3]))

    found = flows(step, X, names={"w": w, "last": last, "one": first, "two": second})
    assert found == {"w": "reduced w", "last": "one two"}


def test_rows_of_tables() -> None:
    table = V(tf.ones([4, 2]))

    def step(x: Any) -> None:
        rows = tf.gather(table, [0, 1])
        table.scatter_sub(tf.IndexedSlices(reduced(rows), tf.constant([0, 1])))

    assert flows(step, X, names={"table": table}) == {"table": "reduced table"}


@pytest.mark.parametrize(
    "value",
    [
        lambda: tf.random.normal([3]),
        lambda: tf.numpy_function(lambda: X.numpy(), [], tf.float32),
        lambda: next(iter(tf.data.Dataset.from_tensors(X))),
        lambda: tf.timestamp() * tf.ones([3], tf.float64),
    ],
)
def test_random_and_read_values_are_rank_local(value: Callable[[], Any]) -> None:
    v = V(tf.zeros([3]))
    assert flows(lambda: v.assign(tf.cast(value(), tf.float32)), names={"v": v}) == {"v": "own"}


def test_stateless_random_numbers_are_their_seed() -> None:
    seed, v = V([1, 2]), V(tf.zeros([3]))
    names = {"seed": seed, "v": v}
    assert flows(lambda: v.assign(tf.random.stateless_normal([3], seed)), names=names) == {
        "v": "seed"
    }


def test_generators_are_random_states() -> None:
    generator = tf.random.Generator.from_seed(1)
    v = V(tf.zeros([3]))
    concrete = tf.function(lambda: v.assign(generator.normal([3]))).get_concrete_function()
    index = next(i for i, t in enumerate(concrete.captured_inputs) if t is generator.state.handle)
    found = find_sources(traced_graph.read(concrete.graph), range(len(concrete.inputs)))
    assert found.random_states == {index}


def test_steps_over_a_dataset_of_the_graph() -> None:
    w, m = V(tf.ones([3])), V(0.0)
    data = tf.data.Dataset.from_tensors(X)

    def step() -> None:
        for x in data:
            m.assign_add(tf.reduce_sum(x))
            w.assign_sub(reduced(w * x))

    found = flows(step, names={"w": w, "m": m})
    assert "reduced" in found["w"] and "reduced" not in found["m"] and "own" in found["m"]


def test_constants_are_distinguished() -> None:
    count, other = V(0), V(0)

    def step(x: Any) -> None:
        count.assign_add(len(x))
        other.assign_add(1)

    def constants(rows: int) -> list[list[bytes]]:
        concrete = tf.function(step).get_concrete_function(tf.ones([rows]))
        found = find_sources(traced_graph.read(concrete.graph), range(1, len(concrete.inputs)))
        return [found.constants_of(mask) for _, mask in sorted(found.writes.items())]

    (three, first), (four, also_one) = constants(3), constants(4)
    assert three != four
    assert first == also_one
