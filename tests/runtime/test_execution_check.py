"""Steps that leave out unconditional all-reduces of their trace are reported."""

from collections import Counter
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal import native
from tf_libra.runtime import execution_check
from tf_libra.runtime.execution_check import UnconditionalReduces, count_unconditional_reduces

FUNCTION = "step of tests/runtime/test_execution_check.py"


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


def execute(*names: str) -> None:
    """Runs the op that counts all-reduces of another library, as it stands behind each of them."""
    for name in names:
        native.load().ops.libra_all_reduce_done(tensor_names=[name], function=FUNCTION)


def expected(*names: str, has_conditional: bool = False) -> UnconditionalReduces:
    return UnconditionalReduces(Counter(names), has_conditional)


def test_complete_execution_passes() -> None:
    execution_check.start_counting(FUNCTION)
    execution_check.check_executed(FUNCTION, expected(), step=1)
    execute("a", "b", "b")
    execution_check.check_executed(FUNCTION, expected("a", "b", "b"), step=1)


def test_missing_all_reduces_are_counted_and_named() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a")
    with pytest.raises(EngineError, match=r"step 4 .* 2 of the 3 .*'b'"):
        execution_check.check_executed(FUNCTION, expected("a", "b", "b"), step=4)


def test_additional_all_reduces_do_not_replace_missing_ones() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a", "other")
    with pytest.raises(EngineError, match=r"steps 3.*4"):
        execution_check.check_executed(
            FUNCTION, expected("a", "b", has_conditional=True), step=4, num_steps=2
        )


def test_conditional_all_reduces_may_be_missing() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a", "sometimes")
    execution_check.check_executed(FUNCTION, expected("a", has_conditional=True), step=1)
