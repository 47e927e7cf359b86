"""The order of a trace's ops."""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tf_libra.model_parallel.capture.ordering import in_order

NUMBERS = st.sets(st.integers(0, 19))


@dataclass
class Op:
    """As much of one as orders it. It is what it gives, too."""

    name: str
    inputs: list[Any] = field(default_factory=list)
    control_inputs: list[Any] = field(default_factory=list)

    @property
    def op(self) -> "Op":
        return self


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20), st.randoms(use_true_random=False))
def test_control_inputs_in_any_order_change_nothing(
    takes: list[tuple[set[int], set[int]]], chance: random.Random
) -> None:
    """TensorFlow says on every rank in another order for what an op waits.

    An op may wait for what was created later, which is before it then.
    """
    rank_of = chance.sample(range(len(takes)), len(takes))  # no op waits in a circle

    def created(shuffles: bool) -> list[Op]:
        ops = [Op(f"op{number}") for number in range(len(takes))]
        for number, (inputs, control) in enumerate(takes):
            for found, into in (
                (inputs, ops[number].inputs),
                (control, ops[number].control_inputs),
            ):
                into += [
                    ops[i] for i in sorted(found) if i < len(ops) and rank_of[i] < rank_of[number]
                ]
            if shuffles:
                chance.shuffle(ops[number].control_inputs)
        return ops

    ops, since = in_order(created(False))
    others, others_since = in_order(created(True))
    assert [one.name for one in ops] == [one.name for one in others]
    assert since == others_since
    place = {one.name: index for index, one in enumerate(ops)}
    assert place.keys() == {f"op{number}" for number in range(len(takes))}
    for one in ops:
        for before in (*one.inputs, *one.control_inputs):
            assert place[before.name] < place[one.name]
            assert since[place[before.name]] <= since[place[one.name]]
