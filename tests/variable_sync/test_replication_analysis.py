"""The replication of variables: rules, and simulated ranks that show whether they hold."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.capture.dataflow.sources import OWN, REDUCED, SourceFlow, source
from tf_libra.variable_sync.replication_analysis import (
    RankReport,
    Replication,
    Traits,
    classify,
    resolve_across_ranks,
)


def flow(
    writes: dict[int, int],
    num_inputs: int,
    random_states: frozenset = frozenset(),
    averaged: int = 0,
) -> SourceFlow:
    return SourceFlow(writes, random_states, num_inputs, (), averaged)


def shared(found: SourceFlow, variables: dict[int, Traits], data_alike: bool = True) -> set[int]:
    """The variables that have to be equal where all ranks have the same graph."""
    judged = classify(found, variables)
    ranks = [
        {
            str(i): RankReport(
                judgment.replication,
                tuple(map(str, judgment.computed_of)),
                judgment.constants,
                "" if data_alike else str(rank),
            )
            for i, judgment in judged.items()
        }
        for rank in range(2)
    ]
    return {int(name) for name in resolve_across_ranks(ranks)}


W, SLOT, RATE, METRIC, AVERAGE, DATA = range(6)
VARIABLES = {i: Traits(trainable=i == W) for i in range(6)}
WRITES = {
    W: source(SLOT) | source(RATE),
    SLOT: source(SLOT) | REDUCED,
    METRIC: source(METRIC) | source(W) | OWN,
    AVERAGE: source(AVERAGE) | source(W),
}


def test_training_step_by_the_book() -> None:
    judged = classify(flow(WRITES, 6), VARIABLES)
    assert [judged[i].replication for i in range(6)] == [
        Replication.SHARED,
        Replication.SHARED,
        Replication.SHARED,
        Replication.OWN,
        Replication.DERIVED,
        Replication.DATA,
    ]
    assert shared(flow(WRITES, 6), VARIABLES) == {W, SLOT, RATE, AVERAGE}


def test_residual_of_rank_local_gradients_is_rank_local() -> None:
    """Unless it reaches weights without being reduced."""
    residual = {W: REDUCED | source(W), SLOT: source(SLOT) | OWN | REDUCED}
    assert classify(flow(residual, 6), VARIABLES)[SLOT].replication == Replication.OWN
    used = residual | {W: source(SLOT) | REDUCED}
    assert classify(flow(used, 6), VARIABLES)[SLOT].replication == Replication.SHARED


def test_learning_rate_that_is_an_argument_leaves_weights_shared() -> None:
    writes = WRITES | {W: WRITES[W] | OWN, RATE: OWN}
    assert shared(flow(writes, 6), VARIABLES) == {W, SLOT, AVERAGE}


def test_slots_that_a_script_has_made_trainable_are_slots() -> None:
    writes = WRITES | {W: WRITES[W] | OWN, RATE: OWN}
    variables = VARIABLES | {SLOT: Traits(trainable=True)}
    assert W in shared(flow(writes, 6, averaged=source(W)), variables)


def test_weights_that_flow_into_a_trainable_variable_are_no_slots() -> None:
    center = 6  # of what the model makes of the rank's own data
    writes = {W: REDUCED | source(W), center: OWN | source(W) | source(center)}
    variables = {i: Traits(trainable=True) for i in (W, center)}
    assert shared(flow(writes, 7, averaged=source(W)), variables) == {W}


def test_trainable_variable_of_local_gradients_is_the_ranks_own() -> None:
    adapter = 6
    writes = WRITES | {adapter: OWN | source(W) | source(adapter)}
    found = shared(flow(writes, 7), VARIABLES | {adapter: Traits(trainable=True)})
    assert found == {W, SLOT, RATE, AVERAGE}


def test_variables_computed_from_different_data_may_differ() -> None:
    writes = WRITES | {AVERAGE: source(AVERAGE) | source(DATA)}
    assert AVERAGE in shared(flow(writes, 6), VARIABLES)
    assert AVERAGE not in shared(flow(writes, 6), VARIABLES, data_alike=False)


def test_frozen_weights_are_shared_and_named_ones_are_not() -> None:
    variables = {0: Traits(trainable=True), 1: Traits(trainable=True, is_own=True)}
    assert shared(flow({}, 2), variables) == {0}


def test_states_of_random_generators_are_own() -> None:
    writes = {0: OWN, 1: source(0)}
    variables = {i: Traits(trainable=False) for i in range(2)}
    judged = classify(flow(writes, 2, frozenset({0})), variables)
    assert judged[0].replication is Replication.OWN
    assert shared(flow(writes, 2, frozenset({0})), variables) == set()


NUM = 6


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, Traits]]:
    """Variables that are written of some others, of averages, and of a rank's own data."""
    writes = {}
    for i in range(NUM):
        if draw(st.booleans()):
            mask = sum(source(j) for j in draw(st.sets(st.integers(0, NUM - 1), max_size=3)))
            mask |= draw(st.sampled_from([0, 0, REDUCED, OWN]))
            writes[i] = mask
    # A weight that the rank's own data flow into is shared all the same, for the sake of learning
    # rates; here nothing is both.
    variables = {i: Traits(trainable=False) for i in range(NUM)}
    return writes, variables


@given(steps(), st.integers(0, 2**32 - 1))
@settings(max_examples=num_examples(300), deadline=None)
def test_replicated_variables_stay_equal(
    step: tuple[dict[int, int], dict[int, Traits]], seed: int
) -> None:
    """Simulated: what started equal, and is computed of equal things, is equal for ever."""
    writes, variables = step
    found = flow(writes, NUM)
    chosen = shared(found, variables, data_alike=False)
    judged = classify(found, variables)
    weights = {i for i in chosen if writes.get(i, 0) & REDUCED}
    tainted = any(not set(found.inputs_of(writes[i])) <= chosen for i in weights if i in writes)
    random = np.random.default_rng(seed)
    start = random.normal(size=NUM)
    ranks = [
        np.where([i in chosen for i in range(NUM)], start, random.normal(size=NUM))
        for _ in range(2)
    ]
    for _ in range(3):
        average = random.normal()
        own = random.normal(size=2)
        ranks = [
            np.array(
                [
                    values[i]
                    if i not in writes
                    else np.sin(
                        sum(values[j] for j in found.inputs_of(writes[i]))
                        + (average if writes[i] & REDUCED else 0)
                        + (own[rank] if writes[i] & OWN else 0)
                        + i
                    )
                    for i in range(NUM)
                ]
            )
            for rank, values in enumerate(ranks)
        ]
    for i in chosen:
        if not tainted:
            assert ranks[0][i] == ranks[1][i], (i, judged[i])
