"""In which order gradients can be produced, and what they are called where names repeat."""

from typing import Any

import tensorflow as tf

from tf_libra.capture.backward_order import NamedGradient, backward_order, unique_name


def test_the_longest_chain_of_ops_decides() -> None:
    found: list[list[int]] = []

    @tf.function
    def step(x: Any) -> Any:
        short = x + 1.0
        long = tf.tanh(tf.tanh(x))
        rows = tf.IndexedSlices(tf.tanh(long), tf.constant([0]))
        found.append(backward_order([rows, long, short], [10, 20, 30]))
        return short

    step(tf.ones([1]))
    assert found[0] == [30, 20, 10]


def test_later_variable_comes_first_among_equals() -> None:
    found: list[list[int]] = []

    @tf.function
    def step(x: Any) -> Any:
        found.append(backward_order([x + 1.0, x + 2.0, x + 3.0], [0, 1, 2]))
        return x

    step(tf.ones([1]))
    assert found[0] == [2, 1, 0]


class Names:
    """Names that a trace gives, one after the other."""

    def __init__(self) -> None:
        self.taken: list[NamedGradient] = []

    def give(self, name: str, kind: str = "float32 (2,)") -> None:
        graph = tf.compat.v1.get_default_graph()
        self.taken.append(NamedGradient(unique_name(name, kind, self.taken), graph, kind))

    @property
    def assigned(self) -> list[str]:
        return [gradient.name for gradient in self.taken]


def test_other_gradients_of_a_name_are_numbered() -> None:
    names = Names()

    @tf.function
    def step() -> None:
        for name in ("w", "w", "b", "w"):
            names.give(name)

    step()
    assert names.assigned == ["w", "w#1", "b", "w#2"]


def test_branches_of_which_one_runs_share_names() -> None:
    names = Names()

    def branch(kind: str) -> Any:
        names.give("w", kind)
        return 1.0

    @tf.function
    def step(x: Any) -> None:
        tf.cond(x > 0, lambda: branch("a"), lambda: branch("a"))
        tf.cond(x > 0, lambda: branch("a"), lambda: branch("b"))  # another choice, another kind

    step(tf.constant(1.0))
    assert names.assigned == ["w", "w", "w#1", "w#2"]


def test_traces_of_one_function_share_names() -> None:
    names = Names()

    @tf.function
    def inner(x: Any) -> Any:
        names.give("w")
        return x

    @tf.function
    def step() -> None:
        inner(tf.ones([1]))
        inner(tf.ones([2]))  # traced again
        names.give("w")

    step()
    assert names.assigned == ["w", "w", "w#1"]
