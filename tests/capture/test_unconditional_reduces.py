"""All-reduces that every execution is certain to have, in real traces."""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.unconditional_reduces import UnconditionalReduces, count_unconditional_reduces
from tf_libra.internal import native


def reduced(name: str, tensor: Any = 1.0) -> Any:
    (result,) = native.load().ops.libra_all_reduce(
        tensors=[tf.convert_to_tensor(tensor)], ends=[], tensor_names=[name], function="f"
    )
    return result


def certain(step: Any, *args: Any) -> UnconditionalReduces:
    return count_unconditional_reduces(
        traced_graph.read(tf.function(step).get_concrete_function(*args).graph)
    )


def test_functions_count_as_often_as_they_are_called() -> None:
    @tf.function
    def inner() -> Any:
        return reduced("inner")

    @tf.function
    def twice() -> Any:
        return inner() + inner()

    found = certain(lambda: twice() + inner() + reduced("outer"))
    assert found.times == {"inner": 3, "outer": 1}
    assert found.num_tensors == 4
    assert not found.has_conditional


def test_branches_and_loops_are_not_certain() -> None:
    def step(x: Any) -> Any:
        y = reduced("always", x)
        y = tf.cond(x > 0, lambda: reduced("branch", y), lambda: y)
        for _ in tf.range(tf.cast(x, tf.int32)):
            y = reduced("loop", y)
        return tf.switch_case(tf.cast(x, tf.int32), [lambda: reduced("case", y), lambda: y])

    found = certain(step, tf.constant(1.0))
    assert found.times == {"always": 1}
    assert found.has_conditional


def test_function_that_is_called_in_a_branch_and_outside() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return reduced("inner", x)

    def step(x: Any) -> Any:
        return inner(x) + tf.cond(x > 0, lambda: inner(x), lambda: x)

    found = certain(step, tf.constant(1.0))
    assert found.times == {"inner": 1}
    assert found.has_conditional


def test_datasets_are_not_certain() -> None:
    def step() -> None:
        for x in tf.data.Dataset.from_tensors(1.0):
            reduced("element", x)

    assert certain(step) == UnconditionalReduces({}, has_conditional=True)


def test_control_flow_of_old_graphs_is_not_certain() -> None:
    def imported(x: Any) -> Any:
        with tf.compat.v1.Graph().as_default() as graph:
            tf.compat.v1.disable_control_flow_v2()
            try:
                given = tf.compat.v1.placeholder(tf.float32, [], name="given")
                tf.compat.v1.cond(
                    given > 0, lambda: reduced("branch", given), lambda: given, name="result"
                )
                reduced("always", given)
            finally:
                tf.compat.v1.enable_control_flow_v2()
        tf.graph_util.import_graph_def(graph.as_graph_def(), input_map={"given:0": x})

    found = certain(imported, tf.constant(1.0))
    assert found.times == {"always": 1}
    assert found.has_conditional
