"""Requests for variables that only some ranks have, to owners that write down what they do."""

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import ShardRegistry, Together, make_call


class Owner:
    """A stand-in for the object that goes with a function."""


class Keeps:
    """Keeps some variables, all of them old."""

    def __init__(self, said: list[str], name: str, *variables: tf.Variable) -> None:
        self.said, self.name = said, name
        self.variables = list(variables)
        self.is_done = False

    @property
    def is_stale(self) -> bool:
        return bool(self.variables)

    def on_owner_collected(self) -> None:
        self.said.append(f"{self.name} is left")

    def warn(self) -> None:
        self.said.append(f"{self.name} warns")

    def synchronize(
        self, bound: Mapping[int, BoundVariable], together: Together = make_call
    ) -> set[int]:
        self.said.append(f"{self.name} brings back")
        brought = {variable.key for variable in self.stale().values()} & bound.keys()
        self.variables = [
            variable for variable in self.variables if int(variable.handle._id) not in brought
        ]
        return brought

    def stale(self) -> dict[int, BoundVariable]:
        return {
            number: BoundVariable(
                number, variable.name, variable.handle, variable.dtype, variable.shape
            )
            for number, variable in enumerate(self.variables)
        }

    def trained(self) -> dict[int, str]:
        return {int(variable.handle._id): variable.name for variable in self.variables}

    def forget_ranks(self) -> None:
        self.said.append(f"{self.name} forgets")


class Rank:
    """One of two ranks, the other of which has sent its part beforehand."""

    def __init__(self, *others: Any) -> None:
        self.others = list(others)
        self.sent: list[Any] = []

    def all_gather(self, message: Any) -> list[Any]:
        self.sent.append(message)
        return [message, self.others.pop(0)]


@pytest.fixture
def every() -> Iterator[ShardRegistry]:
    gc.disable()  # a collection at any other time would be recorded
    found = ShardRegistry()
    yield found
    found._end()
    gc.enable()
    assert found._on_collection not in gc.callbacks


def variables(*names: str) -> list[tf.Variable]:
    return [tf.Variable(0.0, name=name) for name in names]


def bound(*some: tf.Variable) -> dict[int, BoundVariable]:
    every = (
        BoundVariable(0, variable.name, variable.handle, variable.dtype, variable.shape)
        for variable in some
    )
    return {variable.key: variable for variable in every}


def test_owner_records_synchronize_in_an_order_equal_on_all_ranks(every: ShardRegistry) -> None:
    """Whatever the order in which functions were first called here."""
    a, b, c, other = variables("a", "b", "c", "other")
    reported: list[str] = []
    owner = Owner()
    keepers = {
        name: Keeps(reported, name, *own) for name, own in (("2", [b]), ("3", [c]), ("1", [a]))
    }
    for name, keeper in keepers.items():
        every.register(name, keeper, owner)
    assert every.has_stale()
    assert every.names_trained_except(bound(b)) == ["a:0", "c:0"]
    assert every.synchronize(bound(a, c, other), but=keepers["3"]) == bound(a).keys()
    assert reported == ["1 brings back", "2 brings back"]
    assert every.synchronize(bound(a, c)) == bound(c).keys()
    assert keepers["2"].is_stale
    every.synchronize(bound(b))
    reported.clear()
    # No variable is old any more, so no owner is called.
    assert not every.has_stale() and every.synchronize(bound(a, b, c)) == set() and not reported


def test_variables_that_exist_on_every_rank_are_synchronized(every: ShardRegistry) -> None:
    """A variable, or a whole function, may have gone on one rank and not yet on another."""
    a, b, c = variables("a", "b", "c")
    reported: list[str] = []
    owner = Owner()
    first, other = Keeps(reported, "1", a, b), Keeps(reported, "2", c)
    for keeper in (other, first):
        every.register(keeper.name, keeper, owner)
    control: Any = Rank({"1": [1, 7]}, None)
    every.begin_step(control)
    assert every.control() is control
    every.synchronize_all(control)
    assert control.sent == [{"1": [0, 1], "2": [0]}, None]  # None: all of them have all
    assert reported == ["1 brings back", "2 brings back"]
    assert first.variables == [a] and other.variables == [c]
    assert every.control() is None


def test_owner_record_stays_while_variables_are_stale(every: ShardRegistry) -> None:
    reported: list[str] = []
    owner = Owner()
    keeper = Keeps(reported, "1", *variables("a"))
    every.register("1", keeper, owner)
    del owner
    assert reported == ["1 is left"]
    assert every.has_stale()
    gc.collect(0)
    assert reported == ["1 is left"]  # an unreachable object may be there still
    gc.collect()
    assert reported == ["1 is left", "1 warns"]
    keeper.is_done = True
    assert not every.has_stale()
    gc.collect()
    assert reported == ["1 is left", "1 warns"]


def test_replaced_owner_record_is_not_notified(
    every: ShardRegistry,
) -> None:
    reported: list[str] = []
    owners = [Owner(), Owner()]
    for number, owner in enumerate(owners):
        every.register("1", Keeps(reported, f"{number}th", *variables("a")), owner)
    del owner
    del owners[0]
    assert not reported
    owners.clear()
    assert reported == ["1th is left"]


def test_in_another_job_all_is_forgotten_that_ranks_had(every: ShardRegistry) -> None:
    reported: list[str] = []
    owner = Owner()
    every.register("1", Keeps(reported, "1"), owner)
    control: Any = Rank()
    every.begin_job(0)
    every.begin_step(control)
    every.begin_job(0)
    assert not reported and every.control() is control
    every.begin_job(1)
    assert reported == ["1 forgets"] and every.control() is None
    every.begin_job(1)
    assert reported == ["1 forgets"]
    every.begin_job(0)
    assert reported == ["1 forgets"] * 2
