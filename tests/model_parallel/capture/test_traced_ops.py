"""Dependency order of the ops of a trace."""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tf_libra.model_parallel.capture.traced_ops import order_ops

NUMBERS = st.sets(st.integers(0, 19))


@dataclass
class FakeOp:
    """The attributes of an op, and of its output tensor, that determine the order."""

    name: str
    inputs: list[Any] = field(default_factory=list)
    control_inputs: list[Any] = field(default_factory=list)

    @property
    def op(self) -> "FakeOp":
        return self


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20), st.randoms(use_true_random=False))
def test_order_ops_with_shuffled_control_inputs_is_the_same_topological_order(
    edges: list[tuple[set[int], set[int]]], rng: random.Random
) -> None:
    """TensorFlow lists control inputs in another order on every rank.

    An op may depend on an op that was created later, which precedes it in the result.
    """
    depth = rng.sample(range(len(edges)), len(edges))  # edges lead to a smaller depth: no cycle

    def create(shuffle: bool) -> list[FakeOp]:
        ops = [FakeOp(f"op{number}") for number in range(len(edges))]
        for number, (inputs, control) in enumerate(edges):
            for sources, target in (
                (inputs, ops[number].inputs),
                (control, ops[number].control_inputs),
            ):
                target += [
                    ops[i] for i in sorted(sources) if i < len(ops) and depth[i] < depth[number]
                ]
            if shuffle:
                rng.shuffle(ops[number].control_inputs)
        return ops

    ops, available = order_ops(create(shuffle=False))
    shuffled_ops, shuffled_available = order_ops(create(shuffle=True))
    assert [op.name for op in ops] == [op.name for op in shuffled_ops]
    assert available == shuffled_available
    index_of = {op.name: index for index, op in enumerate(ops)}
    assert index_of.keys() == {f"op{number}" for number in range(len(edges))}
    for index, op in enumerate(ops):
        for source in (*op.inputs, *op.control_inputs):
            assert index_of[source.name] < index
            assert available[index_of[source.name]] <= available[index]
