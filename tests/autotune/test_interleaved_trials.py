"""Races of plans with known step times."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.autotune import Budget, BudgetTracker, Phase, Trial, TrialResult
from tf_libra.autotune.interleaved_trials import MAX_ROUNDS, Candidate, Race, race
from tf_libra.specs.plan import Plan, TensorGroup


def plan(index: int) -> Plan:
    return Plan((TensorGroup(0, 1, index + 1),), ("t",), (8,), 2, f"plan {index}")


def run(
    seconds_of: Callable[[int, int], float],
    count: int,
    budget: Budget | None = None,
    seed: int = 0,
    predicted: Sequence[float] | None = None,
    error: float | None = None,
    preferred: Sequence[int] = (),
    guarded: Sequence[int] = (),
) -> tuple[Race, list[int]]:
    """Races `count` plans; `seconds_of(plan, step)` is what a step takes."""
    proposed = [(plan(index), predicted[index] if predicted else None) for index in range(count)]
    racing = race(
        proposed,
        BudgetTracker(budget or Budget(max_steps=1000)),
        seed,
        error,
        preferred=[plan(index).fingerprint for index in preferred],
        guarded=[plan(index).fingerprint for index in guarded],
    )
    order: list[int] = []
    observation = None
    while True:
        try:
            experiment: Trial = racing.send(observation)
        except StopIteration as finished:
            return finished.value, order
        assert experiment.phase is Phase.RACE
        assert not experiment.traced
        index = experiment.plan.groups[0].num_threads - 1
        order.append(index)
        took = round(seconds_of(index, len(order)) * 1e9)
        observation = TrialResult(None, (), called_ns=(10**18, 10**18 + took))


def winners(result: Race) -> list[int]:
    return [candidate.plan.groups[0].num_threads - 1 for candidate in result.candidates]


@settings(max_examples=50)
@given(st.lists(st.floats(0.05, 0.5), min_size=1, max_size=6), st.integers(0, 100))
def test_race_without_noise_is_won_by_the_fastest_plan(seconds: list[float], seed: int) -> None:
    result, order = run(lambda index, _: seconds[index], len(seconds), seed=seed)
    assert round(seconds[winners(result)[0]], 9) == round(min(seconds), 9)
    assert sorted(winners(result)) == list(range(len(seconds)))
    ranked = [round(seconds[index], 9) for index in winners(result)]
    assert ranked == sorted(ranked)
    if len(seconds) > 1:
        assert sorted(order[: len(seconds)]) == list(range(len(seconds)))
        assert sorted(order[len(seconds) : 2 * len(seconds)]) == list(range(len(seconds)))


@pytest.mark.parametrize("max_steps", [3, 6, 9, 1000])
def test_guarded_plan_wins_only_if_it_is_significantly_faster(max_steps: int) -> None:
    """Predictions favour the guarded plan, also where steps do not."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        noise = random.uniform(0.97, 1.03, 5000)
        for seconds, guarded, expected in (
            ([0.1, 0.1, 0.1], [0], {1, 2}),
            ([0.1, 0.1, 0.12], [0], {1}),
            ([0.08, 0.1, 0.1], [0], {0} if max_steps == 1000 else {0, 1, 2}),
            ([0.1, 0.2, 0.2], [0, 1, 2], {0} if max_steps == 1000 else {0, 1, 2}),
        ):
            result, _ = run(
                lambda index, step, each=seconds, factor=noise: each[index] * factor[step],
                3,
                Budget(max_steps=max_steps),
                seed,
                predicted=[0.05, 0.1, 0.1],
                error=0.1,
                guarded=guarded,
            )
            assert winners(result)[0] in expected


@pytest.mark.parametrize("seed", range(10))
def test_guarded_winner_is_significantly_faster_than_every_other_plan(seed: int) -> None:
    """Another guarded plan may be, and predictions favour this one."""
    seconds = [0.098, 0.09, 0.1, 0.1]
    noise = np.random.default_rng(seed).lognormal(sigma=0.05, size=5000)
    result, _ = run(
        lambda index, step: seconds[index] * noise[step],
        4,
        seed=seed,
        predicted=[0.06, 0.1, 0.1, 0.1],
        error=0.02,
        guarded=[0, 1],
    )
    winner, *others = winners(result)
    for candidate, other in zip(result.candidates[1:], others, strict=True):
        compared = result.compare(candidate)
        assert winner in (2, 3) or other in (0, 1) or compared is None or compared.low > 1


def test_known_plans_need_no_first_step() -> None:
    proposed = [(plan(index), None) for index in range(3)]
    racing = race(proposed, BudgetTracker(Budget(max_steps=4)), known={plan(0).fingerprint})
    experiments, observation = [], None
    while True:
        try:
            experiments.append(racing.send(observation))
        except StopIteration:
            break
        observation = TrialResult(None, (), called_ns=(10**18, 10**18 + 10**8))
    assert [experiment.plan for experiment in experiments if experiment.is_first] == [
        plan(1),
        plan(2),
    ]
    assert len(experiments) == 4 and not any(experiment.is_first for experiment in experiments[2:])


@pytest.mark.parametrize("slower", [False, True])
def test_steps_with_gathers_are_measured_after_another_of_the_plan(slower: bool) -> None:
    """The first step under the plan waits for nothing."""
    proposed = [(plan(index), None) for index in range(2)]
    known = [each.fingerprint for each, _ in proposed]
    racing = race(proposed, BudgetTracker(Budget()), known=known, overlapping=known[1:])
    experiments: list[Trial] = []
    observation = None
    while True:
        try:
            experiments.append(racing.send(observation))
        except StopIteration as finished:
            result: Race = finished.value
            break
        took = 100 if experiments[-1].plan == plan(0) else 50
        if experiments[-1].is_consecutive:
            assert experiments[-2].plan == experiments[-1].plan
            took = 120 if slower else 80
        observation = TrialResult(None, (), called_ns=(10**18, 10**18 + took * 10**6))
    assert winners(result)[0] == (not slower)
    measured = {round(seconds, 3) for each in result.candidates for seconds in each.seconds}
    assert measured == ({0.1, 0.12} if slower else {0.1, 0.08})


def test_unobserved_step_is_repeated() -> None:
    """A data set may end during a race: that step fails, and the next one succeeds."""
    random = np.random.default_rng(0)
    racing = race([(plan(index), None) for index in range(3)], BudgetTracker(Budget(max_steps=200)))
    observation, num_steps, unseen = None, 0, 0
    while True:
        try:
            experiment = racing.send(observation)
        except StopIteration as finished:
            result: Race = finished.value
            break
        num_steps += 1
        took = 10**8 * experiment.plan.groups[0].num_threads
        observation = TrialResult(None, (), called_ns=(10**18, 10**18 + took))
        if random.random() < 0.3:
            observation = random.choice([None, replace(observation, called_ns=(5, 5))])
            unseen += not experiment.is_first
    assert winners(result) == [0, 1, 2]
    assert unseen > 0
    assert num_steps == 3 + sum(len(candidate.seconds) for candidate in result.candidates) + unseen
    blind = race([(plan(index), None) for index in range(2)], BudgetTracker(Budget(max_steps=9)))
    assert len([*blind]) == 9


def test_one_plan_alone_wins_without_a_step() -> None:
    result, order = run(lambda *_: 1.0, 1)
    assert winners(result) == [0]
    assert order == []


@pytest.mark.parametrize("seed", range(20))
def test_temporary_slowdowns_hardly_affect_the_winner(seed: int) -> None:
    """The machine is 1.38 times slower now and then, for parts of a round or a few rounds."""
    random = np.random.default_rng(seed)
    true = 0.1 * (1 + 0.2 * random.random(8))
    paces = np.repeat([1.0, 1.38] * 40, random.integers(5, 60, size=80))

    def seconds(index: int, step: int) -> float:
        return float(true[index] * paces[step] * (1 + 0.005 * random.standard_normal()))

    result, _ = run(seconds, 8, seed=seed)
    assert true[winners(result)[0]] <= 1.02 * true.min()


@pytest.mark.parametrize("seed", range(20))
def test_noise_hardly_affects_the_winner(seed: int) -> None:
    random = np.random.default_rng(seed)
    true = 0.1 * (1 + 0.05 * random.random(5))
    noise = 0.01

    def seconds(index: int, step: int) -> float:
        disturbed = 2.0 if step % 17 == 0 else 1.0  # another user's program, now and then
        return float(true[index] * disturbed * (1 + noise * random.standard_normal()))

    result, _ = run(seconds, 5, seed=seed)
    assert true[winners(result)[0]] <= 1.02 * true.min()


def test_clearly_slower_plan_is_eliminated() -> None:
    random = np.random.default_rng(0)
    result, order = run(
        lambda index, _: (1.0, 1.0, 1.5, 2.0)[index] * (1 + 0.04 * random.random()), 4
    )
    assert order.count(3) <= 5 and order.count(2) <= 5
    assert winners(result)[2:] == [2, 3]
    assert len(result.candidates[-1].seconds) < result.num_rounds <= MAX_ROUNDS


def test_race_continues_while_a_plan_may_be_faster() -> None:
    """Equal plans are separated soon without noise, and late with noise."""
    rounds: dict[float, list[int]] = {0.001: [], 0.06: []}
    for noise, found in rounds.items():
        for seed in range(15):
            random = np.random.default_rng(seed)

            def seconds(*_: int, noise: float = noise, random=random) -> float:
                return float(np.exp(noise * random.standard_normal()))

            found.append(run(seconds, 3)[0].num_rounds)
    quiet, noisy = rounds.values()
    assert max(quiet) < np.median(noisy) <= MAX_ROUNDS


def test_machine_drift_does_not_decide_the_race() -> None:
    """All steps get slower; a plan that is always 3 % faster wins."""
    result, _ = run(lambda index, step: (1.03, 1.0)[index] * 1.05**step, 2)
    assert winners(result)[0] == 1


@pytest.mark.parametrize("max_steps", range(15))
def test_budget_end_leaves_complete_rounds(max_steps: int) -> None:
    if max_steps == 0:
        return
    result, order = run(lambda index, _: (3.0, 1.0, 2.0)[index], 3, Budget(max_steps=max_steps))
    assert len(order) == min(max_steps, 15)
    assert {len(candidate.seconds) for candidate in result.candidates} == {
        max(0, max_steps // 3 - 1)
    }
    # Before anything was measured, the most promising is first.
    assert winners(result)[0] == (0 if max_steps < 6 else 1)


def test_race_has_the_error_of_predictions() -> None:
    best = Candidate(plan(0), 1.1, (1.0, 1.0, 1.0, 1.0))
    near = Candidate(plan(1), 1.0, (1.02, 0.99, 1.01, 1.0))
    far = Candidate(plan(2), None, (1.5, 1.52, 1.49))
    assert Race((best, near, far)).median_error == pytest.approx((0.1 + (1 - 1 / 1.005)) / 2)


def keeps(true: Sequence[float], noise: float, seed: int, preferred: Sequence[int] = (0,)) -> bool:
    """Returns whether the first plan wins a race of plans with these true steps."""
    random = np.random.default_rng(seed)
    found, _ = run(
        lambda index, _: 0.1 * true[index] * float(np.exp(noise * random.standard_normal())),
        len(true),
        seed=seed,
        preferred=preferred,
    )
    check_agreement(found)
    return winners(found)[0] == 0


def check_agreement(found: Race) -> None:
    """Checks that no plan is shown as clearly faster than the active one."""
    for candidate in found.candidates[1:]:
        compared = found.compare(candidate)
        assert compared is None or compared.high >= 1


@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_preferred_plan_wins_if_only_noise_differs(noise: float) -> None:
    num_kept = sum(keeps((1.0, 1.0, 1.0, 1.0), noise, seed) for seed in range(60))
    assert num_kept >= 56


@pytest.mark.parametrize("faster", [1, 3])
def test_plan_that_is_five_per_cent_faster_replaces_the_preferred_one(faster: int) -> None:
    true = [1.05] * 4
    true[faster] = 1.0
    assert sum(keeps(true, 0.015, seed) for seed in range(40)) <= 2


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.9, 1.1), min_size=2, max_size=5),
    st.floats(0.001, 0.05),
    st.integers(0, 1000),
    st.booleans(),
)
def test_no_plan_is_shown_as_faster_than_the_active_one(
    true: list[float], noise: float, seed: int, is_preferred: bool
) -> None:
    keeps(true, noise, seed, (0,) if is_preferred else ())


def test_next_preferred_plan_wins_if_the_first_is_slower() -> None:
    random = np.random.default_rng(0)
    found, _ = run(
        lambda index, _: (1.2, 1.0, 1.0)[index] * float(np.exp(0.01 * random.standard_normal())),
        3,
        preferred=(0, 2),
    )
    assert winners(found)[0] == 2
    assert winners(found)[-1] == 0


@pytest.mark.parametrize("max_steps", [1, 3, 6])
def test_preferred_plan_wins_without_enough_rounds(max_steps: int) -> None:
    found, _ = run(lambda index, _: 1.0 + index, 3, Budget(max_steps=max_steps), preferred=(2,))
    assert winners(found)[0] == 2


def _losses(noise: float, error: float, said: float | None, count: int = 150) -> list[float]:
    """Returns how much longer the winner's step takes than the best's, in races of four plans.

    Args:
        noise: deviation of steps.
        error: deviation of predictions.
        said: the error of predictions that is passed to the race.
            count: number of races.
    """
    losses = []
    for seed in range(count):
        random = np.random.default_rng(seed)
        true = 1 + 0.1 * random.random(4)
        predicted = 0.9 * true * np.exp(error * random.standard_normal(4))

        steps = true[:, None] * np.exp(noise * random.standard_normal((4, 100)))
        result, _ = run(
            lambda index, step, steps=steps: float(steps[index, step]),
            4,
            None,
            seed,
            predicted.tolist(),
            said,
        )
        losses.append(float(true[winners(result)[0]] / true.min() - 1))
    return losses


def test_good_model_decides_between_noisy_steps() -> None:
    alone, both = np.mean(_losses(0.12, 0.01, None)), np.mean(_losses(0.12, 0.01, 0.01))
    assert both < 0.6 * alone


def test_wrong_model_with_a_known_error_does_no_harm() -> None:
    assert _losses(0.02, 0.3, 0.2) == _losses(0.02, 0.3, None)


def test_wrong_model_with_an_underestimated_error_does_little_harm() -> None:
    alone, both = np.mean(_losses(0.03, 0.2, None)), np.mean(_losses(0.03, 0.2, 0.01))
    assert both < 1.3 * alone


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), st.integers(0, 1000))
def test_prediction_never_overrides_significant_steps(predicted: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    result, _ = run(
        lambda index, _: (1.0, 1.1, 1.2)[index] * float(np.exp(0.005 * random.standard_normal())),
        3,
        predicted=predicted,
        error=0.001,
    )
    assert winners(result)[0] == 0


def test_race_without_candidates_is_rejected() -> None:
    with pytest.raises(ValueError, match="candidates must hold"):
        next(race([], BudgetTracker(Budget())))
