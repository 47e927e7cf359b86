"""Values that are created once per process, and what a reset and a fork do to them."""

import os

from tf_libra.internal.process_state import OnReset, ProcessState


def test_value_is_created_by_the_first_call_alone() -> None:
    state, created = ProcessState(), []

    @state.value()
    def numbers() -> list[int]:
        created.append(1)
        return []

    assert created == []
    numbers().append(7)
    assert numbers() == [7]
    assert created == [1]


def test_reset_discards_preserves_or_calls_a_method() -> None:
    state = ProcessState()

    @state.value(on_reset=OnReset.DISCARD)
    def discarded() -> list[int]:
        return []

    @state.value()
    def kept() -> list[int]:
        return []

    @state.value(on_reset=list.pop)
    def shortened() -> list[int]:
        return [1, 2]

    state.reset()  # before any value is created
    assert shortened() == [1, 2]
    discarded().append(1)
    kept().append(1)
    state.reset()
    assert (discarded(), kept(), shortened()) == ([], [1], [1])


def test_forked_child_creates_what_does_not_survive() -> None:
    state = ProcessState()

    @state.value(survives_fork=False)
    def connections() -> list[int]:
        return []

    @state.value()
    def settings() -> list[int]:
        return []

    connections().append(1)
    settings().append(1)
    child = os.fork()
    if child == 0:
        os._exit(7 if (connections(), settings()) == ([], [1]) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert connections() == [1]


def test_names_are_those_of_the_declarations() -> None:
    state = ProcessState()

    @state.value()
    def numbers() -> list[int]:
        return []

    [name] = state.names
    assert name.startswith(f"{__name__}.") and name.endswith("numbers")
