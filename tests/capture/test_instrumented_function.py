"""The all-reduces of a traced step, by its graph; that needs no engine."""

import functools
import gc
import threading
import weakref
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, all_reduces, chain, loss_of
from tf_libra.capture import instrumented_function
from tf_libra.capture.gradient_interception import intercept_gradients
from tf_libra.capture.gradient_registry import ReducedGradient, ReductionPolicy
from tf_libra.capture.instrumented_function import InstrumentedFunction


def test_gradients_are_marked_in_backward_order() -> None:
    layers, traces = chain(), Traces()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        # The user may ask in any order, and in any structure.
        return tape.gradient(loss, {"a": [layers[2], layers[0]], "b": (layers[3], layers[1])})

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    concrete = call.get_concrete_function(INPUTS)
    assert traces.names() == ["layer3", "layer2", "layer1", "layer0"]
    assert all_reduces(concrete) == traces.names()
    assert traces.marked[0][0] == ReducedGradient("layer3", (4, 4), "float32", 64)
    assert set(concrete.structured_outputs) == {"a", "b"}


def test_gradients_of_what_is_no_variable_are_left_alone() -> None:
    layers, traces = chain(), Traces()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, [inputs, layers[0]])

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    assert all_reduces(call.get_concrete_function(INPUTS)) == ["layer0"]


def test_two_gradients_of_one_variable_have_two_names() -> None:
    [layer, *_], traces = chain(), Traces()

    def step(inputs: tf.Tensor) -> Any:
        results = []
        for scale in (1.0, 2.0):
            with tf.GradientTape() as tape:
                loss = loss_of([layer], inputs * scale)
            results.append(tape.gradient(loss, layer))
        return results

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    assert all_reduces(call.get_concrete_function(INPUTS)) == ["layer0", "layer0#1"]
    assert traces.names() == ["layer0", "layer0#1"]


def test_every_trace_reports_functions_that_were_traced_before() -> None:
    layers, traces = chain(), Traces()

    @tf.function
    def inner(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    def step(inputs: tf.Tensor, scale: float) -> Any:
        return [gradient * scale for gradient in inner(inputs)]

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    call.get_concrete_function(INPUTS, 1.0)
    call.get_concrete_function(INPUTS, 2.0)
    assert len(traces.marked) == 2
    assert traces.names(1) == traces.names(0) == ["layer3", "layer2", "layer1", "layer0"]


def test_autograph_converts_the_step_and_what_it_calls() -> None:
    def doubled(inputs: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            inputs = inputs * 2.0
        return inputs

    def step(inputs: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(inputs) > 0:
            return doubled(inputs)
        return inputs

    call = instrumented_function.InstrumentedFunction(tf.function(step), lambda *_: None)
    assert float(call(tf.constant(3.0))) == 12
    assert float(call(tf.constant(-3.0))) == -3


def test_autograph_stays_off_where_the_user_switched_it_off() -> None:
    def step(inputs: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            inputs = inputs * 2.0
        return inputs

    call = instrumented_function.InstrumentedFunction(
        tf.function(step, autograph=False), lambda *_: None
    )
    with pytest.raises(Exception, match="Iterating over a symbolic"):
        call.get_concrete_function(INPUTS)


def test_options_of_the_users_function_stay() -> None:
    traces = Traces()
    signature = [tf.TensorSpec([None, 4], name="x")]
    call = instrumented_function.InstrumentedFunction(
        tf.function(lambda inputs: inputs, input_signature=signature), traces.add
    )
    call(tf.ones([2, 4]))
    call(tf.ones([5, 4]))
    assert len(traces.marked) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_tapes_outside_of_a_trace_are_left_alone(fails: bool) -> None:
    original = tf.GradientTape.gradient

    def enter() -> None:
        with intercept_gradients("step"):
            assert tf.GradientTape.gradient is not original
            if fails:
                raise KeyError("a mistake of the user's")

    if fails:
        with pytest.raises(KeyError):
            enter()
    else:
        enter()
    assert tf.GradientTape.gradient is original
    with tf.GradientTape() as tape:
        variable = tf.Variable(3.0)
        square = variable**2
    with tf.GradientTape(), tf.init_scope():
        assert float(tape.gradient(square, variable)) == 6


def test_step_compiled_by_xla_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"step.*jit_compile=True"):

        def step() -> None:
            pass

        instrumented_function.InstrumentedFunction(
            tf.function(step, jit_compile=True), lambda *_: None
        )


@pytest.mark.parametrize("is_nested", [False, True])
def test_inner_function_compiled_by_xla_is_named(is_nested: bool) -> None:
    variable = tf.Variable(3.0)

    @tf.function
    def nested() -> tf.Tensor:
        with tf.GradientTape() as tape:
            square = variable**2
        return tape.gradient(square, variable)

    def compiled_gradient() -> tf.Tensor:
        return nested() if is_nested else nested.python_function()

    compiled = tf.function(compiled_gradient, jit_compile=True)
    step = instrumented_function.InstrumentedFunction(lambda: compiled(), lambda *_: None)
    with pytest.raises(ValueError, match="'compiled_gradient'"):
        step()


def test_gradient_of_an_average_is_averaged_too() -> None:
    """A step that differentiates through its own gradients, as a gradient penalty does."""
    layers, traces = chain(), Traces()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = loss_of(layers, inputs)
            gradients = inner.gradient(loss, layers)
            penalty = tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        return outer.gradient(penalty, layers)

    def function(**rules: Any) -> Any:
        return instrumented_function.InstrumentedFunction(
            tf.function(step), traces.add, lambda: ReductionPolicy(**rules)
        )

    with pytest.raises(ValueError, match=r"(?s)step .*'layer0'.*inner_gradients='average'"):
        function().get_concrete_function(INPUTS)
    assert all_reduces(function(inner_gradients="local").get_concrete_function(INPUTS)) == [
        "layer3",
        "layer2",
        "layer1",
        "layer0",
    ]
    found = all_reduces(function(inner_gradients="average").get_concrete_function(INPUTS))
    once = {f"layer{i}" for i in range(4)}
    assert set(found) == once | {f"{n}/grad" for n in once} | {f"{n}#1" for n in once}
    assert set(traces.names()) == once | {f"{n}#1" for n in once}


def test_tape_of_another_thread_is_left_alone() -> None:
    layers, traces = chain(), Traces()
    seen: list[Any] = []

    def elsewhere() -> None:
        variable = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            square = variable**2
        seen.append(tape.gradient(square, variable))

    def step(inputs: tf.Tensor) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    call = instrumented_function.InstrumentedFunction(
        tf.function(step, autograph=False), traces.add
    )
    call.get_concrete_function(INPUTS)
    assert float(seen[0]) == 6
    assert len(traces.names()) == 4


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_gradients_are_gathered_last_or_made_dense(dense: bool) -> None:
    table, final, traces = tf.Variable(tf.ones([9, 4])), tf.Variable(tf.ones([4, 2])), Traces()

    def step(words: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, words) @ final)
        return tape.gradient(loss, {"table": table, "final": final})

    call = instrumented_function.InstrumentedFunction(
        tf.function(step), traces.add, lambda: ReductionPolicy(sparse_as_dense=dense)
    )
    concrete = call.get_concrete_function(tf.TensorSpec([None], tf.int64))
    assert [gradient.is_gathered for gradient in traces.marked[0]] == [False, not dense]
    found = all_reduces(concrete)
    (name,) = (gradient.name for gradient in traces.marked[0] if gradient.shape[-1:] == (4,))
    expected = [] if dense else [f"{name}/counts", f"{name}/indices"]
    assert found[1:] == [*expected, name]
    returned = concrete.structured_outputs["table"]
    assert isinstance(returned, tf.IndexedSlices) is not dense
    if not dense:
        assert returned.values.shape.as_list() == [None, 4]
        assert returned.indices.dtype == tf.int64


# What steps are called.


class Trainer:
    def __call__(self, inputs: Any, scale: float = 1.0) -> Any:
        return inputs * scale

    @tf.function
    def method(self, inputs: Any) -> Any:
        return inputs

    def plainly(self, inputs: Any) -> Any:
        return inputs


class TracedTrainer:
    @tf.function
    def __call__(self, inputs: Any) -> Any:
        return inputs


def plain_step(inputs: Any, scale: float = 1.0) -> Any:
    return inputs * scale


@functools.wraps(plain_step)
def wrapped_step(*args: Any) -> Any:
    return plain_step(*args)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (plain_step, "plain_step"),
        (tf.function(plain_step), "plain_step"),
        (wrapped_step, "plain_step"),
        (functools.partial(plain_step, scale=2.0), "plain_step"),
        (functools.partial(functools.partial(plain_step), scale=2.0), "plain_step"),
        (tf.function(functools.partial(plain_step, scale=2.0)), "plain_step"),
        (functools.partial(tf.function(plain_step), scale=2.0), "plain_step"),
        (Trainer(), "Trainer"),
        (tf.function(Trainer()), "Trainer"),
        (functools.partial(Trainer(), scale=2.0), "Trainer"),
        (TracedTrainer(), "TracedTrainer"),
        (Trainer().method, "Trainer.method"),
        (Trainer().plainly, "Trainer.plainly"),
        (functools.partial(Trainer().method), "Trainer.method"),
        (lambda inputs: inputs, "<lambda>"),
    ],
)
def test_a_step_is_called_alike_in_every_process(step: Any, name: str) -> None:
    assert instrumented_function.step_name(step) == name
    call = instrumented_function.InstrumentedFunction(step, lambda _: None)
    expected = step(tf.constant(3.0))
    assert float(call(tf.constant(3.0))) == float(expected)
    assert "0x" not in instrumented_function.step_name(step)


class Lazy:
    """Makes its variable in its first step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.layer: tf.Variable | None = None

    def step(self, inputs: tf.Tensor) -> tf.Tensor:
        if self.layer is None:
            self.layer = tf.Variable(tf.ones([4, 4]), name=self.name)
        with tf.GradientTape() as tape:
            loss = loss_of([self.layer], inputs)
        return tape.gradient(loss, self.layer)


def lazy_step(traces: Traces, **given: Any) -> InstrumentedFunction:
    return instrumented_function.InstrumentedFunction(
        tf.function(Lazy.step, **given), traces.add, is_method=lambda: True
    )


@pytest.mark.parametrize("signature", [None, [INPUTS]])
def test_every_object_whose_method_it_is_makes_its_own_variables(signature: Any) -> None:
    traces = Traces()
    call = lazy_step(traces, input_signature=signature)
    objects = [Lazy("left"), Lazy("right")]
    for object_ in objects * 2:
        call.get_concrete_function(object_, tf.ones([2, 4]))
    # Twice each, since the first trace makes a variable.
    assert [traces.names(i) for i in range(4)] == [["left"], ["left"], ["right"], ["right"]]
    assert len(traces.marked) == call.experimental_get_tracing_count() == 4


def test_traced_object_can_be_freed() -> None:
    call, lazy = lazy_step(Traces()), Lazy("gone")
    call.get_concrete_function(lazy, INPUTS)
    gone = weakref.ref(lazy)
    del lazy
    gc.collect()
    assert gone() is None
