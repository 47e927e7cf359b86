"""Steps of `auto` when the ranks of a job change, or leave it."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Budget, Phase
from tf_libra.planning.family_comparison import FamilyComparison, TrialCost
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.runtime import family_step
from tf_libra.runtime.family_choice import FamilyChoice, FamilyWatch
from tf_libra.runtime.family_prediction import Reference
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.family_trials import FIRST, MAX_UNLIKE, SEVERAL, UNLIKE, UNTIMED
from tf_libra.runtime.protocol import TrialError, TuningState
from tf_libra.runtime.strategy_kinds import Links
from tf_libra.runtime.training_step import TrainingFunction

OTHER = "spp"


class DataParallelism:
    """Stand-in of a `TrainingFunction` that has tuned in a job of two ranks."""

    error_feedback = None
    is_method = False
    gathers_rows = False
    cache = None

    def __init__(self) -> None:
        options = SimpleNamespace(engine="lanes")
        self.rendezvous = SimpleNamespace(
            is_over=False, rank_and_size=(1, 2), options=options, job=None
        )
        self.step_number = 7
        self.settled = True
        self.chosen: list[str] = []  # digests of values that ranks may choose
        self.kinds: list[Any] = []  # of the arguments of steps, as exchanged
        self.now, self.step_seconds = 0.0, 1e-3

    def clock(self) -> float:
        """Returns seconds, which every look at the clock takes a little of."""
        self.now += 1e-6
        return self.now

    @property
    def state(self) -> TuningState:
        return TuningState(Phase.RUN if self.settled else Phase.TRACE)

    def leave_job(self) -> None:
        self.rendezvous.is_over = False
        self.step_number = 0
        self.settled = False

    def exchange_in_step(self, value: Any) -> list[Any]:
        self.kinds.append(value)
        return [value, value]

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def chosen_values(self, args: Any, kwargs: Any) -> list[str] | None:
        return None if kwargs else [*self.chosen]

    def step(self, args: Any, kwargs: Any, num_steps: int = 1) -> int:
        self.step_number += num_steps
        self.now += num_steps * self.step_seconds
        return self.step_number

    def count_other_step(self, strategy: str) -> None:
        pass

    def explain(self) -> str:
        return ""


class Other:
    """Stand-in of a candidate that has measured."""

    is_method = is_tried = is_undoable = False
    settled = True
    undo_seconds = 0.0
    predicted_seconds: float | None = None
    link_share = 0.0
    plan: Any = None
    computation = ""
    state = TuningState(Phase.RUN)

    def __init__(self) -> None:
        self.step_number = 0
        self.fails = False
        self.undoable: list[bool] = []  # by step
        self.num_measured = self.num_forgotten = 0

    def measure_links_again(self) -> None:
        self.num_measured += 1

    def forget_links(self) -> None:
        self.num_forgotten += 1

    def explain(self) -> str:
        return ""

    def step(self, args: Any, kwargs: Any, num_steps: int = 1) -> str:
        self.undoable.append(self.is_undoable)
        if self.fails:
            raise TrialError("no memory (on rank 1)")
        self.step_number += 1
        return "other"


@pytest.fixture
def first() -> DataParallelism:
    return DataParallelism()


@pytest.fixture
def step(first: DataParallelism) -> FamilyStep:
    options = config.resolve({"progress": False})
    return FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), families=())


def test_first_step_after_ranks_have_changed_exchanges_nothing_with_those_of_the_last_job(
    first: DataParallelism, step: FamilyStep
) -> None:
    first.rendezvous.is_over = True
    assert step.step((tf.zeros([4, 2]),), {}) == 1
    assert first.kinds == []


def test_ranks_compare_arguments_once_data_parallelism_has_tuned(
    first: DataParallelism, step: FamilyStep
) -> None:
    step.step((tf.zeros([4, 2]), 3, Phase.RUN, tf.float16), {})
    kinds = ["float32 (4, 2)", "3", repr(Phase.RUN), "tf.float16"]
    assert first.kinds == [[kinds, False, False]]


def test_ranks_compare_values_of_arguments_without_examples(
    first: DataParallelism, step: FamilyStep
) -> None:
    """Only one rank passes its value to the step of another strategy."""
    first.chosen = ["a digest"]
    iterator = iter(tf.data.Dataset.range(1))
    step.step((tf.constant(2.0), np.int64(3), np.array(0.5), tf.constant("a"), iterator), {})
    [[kinds, *_]] = first.kinds
    assert kinds[:4] == ["float32 2.0", "int64 3", "float64 0.5", "string b'a'"]
    assert kinds[-1] == "a digest"


def test_evaluation_is_no_step_of_trials(
    first: DataParallelism, tried: FamilyStep, other: Other
) -> None:
    """Another rank need not make it, so nothing is exchanged."""
    for _ in range(4):
        tried.step((tf.zeros([4, 2]),), {"training": False})
    assert not first.kinds and not other.undoable and not tried.settled
    train(tried, 1)
    assert len(first.kinds) == 1


@pytest.fixture
def other(tried: FamilyStep) -> Other:
    """A candidate that has passed all checks."""
    candidate: Any = Other()
    tried._candidates.steps[OTHER] = candidate
    tried._candidates._repeated.add(OTHER)
    tried._is_checked = True
    return cast(Other, candidate)


@pytest.fixture
def tried(first: DataParallelism) -> FamilyStep:
    options = config.resolve({"progress": False})
    return FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), [OTHER])


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Lets the last strategy win, and returns the medians that are compared."""
    medians: list[dict[str, float]] = []

    def choose(seconds: dict[str, float]) -> str:
        medians.append(seconds)
        return [*seconds][-1]

    monkeypatch.setattr(family_step, "choose_fastest", choose)
    return medians


def train(step: FamilyStep, num_steps: int) -> list[Any]:
    return [step.step((tf.zeros([4, 2]),), {}) for _ in range(num_steps)]


@pytest.mark.usefixtures("chosen")
def test_strategy_that_fails_after_trials_is_chosen_no_longer(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[FamilyChoice] = []
    monkeypatch.setattr(first, "cache", SimpleNamespace(store_family=stored.append))
    other.plan = SimpleNamespace(to_json=lambda: "{}")
    train(tried, 32)
    assert train(tried, 1) == ["other"]
    assert other.undoable == [True] * 16 + [False]
    other.fails = True
    assert train(tried, 2) == [first.step_number - 1, first.step_number]
    assert [choice.name for choice in stored] == [OTHER, FIRST]
    families = stored[-1].families
    assert families.active == FIRST
    reasons = {row.name: row.left_out for row in families.rows}
    assert reasons == {FIRST: "", OTHER: "no memory (on rank 1)"}


@pytest.mark.usefixtures("chosen")
def test_strategy_of_an_earlier_job_that_fails_leaves_those_that_take_part(
    tried: FamilyStep, other: Other
) -> None:
    """Other times of that job are of strategies that have not been checked in this one."""
    train(tried, 32)
    tried._medians["unchecked"] = 1e-9
    other.fails = True
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST


def test_trials_end_if_ranks_never_have_batches_of_the_same_kind(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(value: list[Any]) -> list[Any]:
        return [value, [["float32 (5, 2)"], *value[1:]]]

    monkeypatch.setattr(first, "exchange_in_step", unlike)
    train(tried, MAX_UNLIKE - 1)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and tried.runs_several and not other.undoable
    assert tried._candidates.left_out == {OTHER: UNLIKE}


def test_strategy_that_fails_in_its_turn_leaves_the_times_of_the_others(
    first: DataParallelism, tried: FamilyStep, other: Other, chosen: list[dict[str, float]]
) -> None:
    train(tried, 5)
    other.fails = True
    train(tried, 2)
    assert tried.settled and [[*medians] for medians in chosen] == [[FIRST]]
    assert len(other.undoable) == 2


def limit_trials(
    monkeypatch: pytest.MonkeyPatch, max_steps: int = 150, max_seconds: float = 60.0
) -> None:
    budget = Budget(max_steps, max_seconds)
    monkeypatch.setattr(config.DataParallelOptions, "trial_budget", budget)


def predict(step: FamilyStep, seconds: float | None) -> None:
    """Lets a step of data parallelism take a second, and one of the other strategy `seconds`."""
    candidates = step._candidates
    compared = OneWorkerComparison(2, 1.0, 2.0)
    candidates.reference = Reference(compared, 1.0, Links(2, 1e9, 0.0, 0.0))
    if seconds is not None:
        candidates.predicted[OTHER] = seconds


def test_trials_that_take_too_long_end_within_a_round(
    tried: FamilyStep,
    other: Other,
    chosen: list[dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(tried, 7)
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and [[*medians] for medians in chosen] == [[FIRST, OTHER]]
    assert not tried._candidates.left_out


@pytest.mark.parametrize(
    ("limits", "num_steps"),
    [({"max_seconds": 1e-9}, 3), ({"max_seconds": 1e-9}, 0), ({"max_steps": 12}, 0)],
)
@pytest.mark.parametrize(
    ("seconds", "name"), [(0.5, OTHER), (0.99, FIRST), (2.0, FIRST), (None, FIRST)]
)
def test_budget_too_small_for_two_strategies_chooses_by_prediction(
    limits: dict[str, Any],
    num_steps: int,
    seconds: float | None,
    name: str,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strategy without a prediction cannot be chosen; no later job relies on the choice."""
    stored: list[FamilyChoice] = []
    monkeypatch.setattr(first, "cache", SimpleNamespace(store_family=stored.append))
    other.plan = SimpleNamespace(to_json=lambda: "{}")
    predict(tried, seconds)
    train(tried, num_steps)
    tried._clock.count_step()
    limit_trials(monkeypatch, **limits)
    train(tried, 1)
    assert tried.settled and tried._chosen == name
    assert ("by prediction, as " in " ".join(tried.explain().split())) is (seconds is not None)
    assert tried._candidates.left_out == ({} if seconds else {OTHER: UNTIMED})
    assert not stored


def test_strategy_that_has_not_repeated_a_step_is_not_chosen_by_prediction(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(tried, 0.5)
    tried._candidates._repeated.clear()
    tried._clock.count_step()
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST and not other.undoable
    assert tried._candidates.left_out == {OTHER: UNTIMED}


@pytest.mark.usefixtures("other")
def test_budget_for_few_turns_shortens_trials(
    tried: FamilyStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of turns of three steps each, of both strategies."""
    predict(tried, 0.5)
    limit_trials(monkeypatch, max_steps=13)
    train(tried, 12)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and len(tried._medians) == 2


def test_rounds_that_take_long_end_with_the_present_one(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tried, 2)
    monkeypatch.setattr(family_step, "MAX_SECONDS", 0.0)
    train(tried, 6)
    assert not tried.settled
    train(tried, 1)
    assert tried.settled and len(other.undoable) >= 4


def test_repeated_trials_time_data_parallelism_before_they_compare(
    tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step of the first trials is from before the drift."""
    checks: list[tuple[int, bool]] = []

    def check(_: Any, __: Any, seconds: list[float], is_repeated: bool, ___: Any) -> None:
        checks.append((len(seconds), is_repeated))

    monkeypatch.setattr(tried._candidates, "check", check)
    train(tried, 33)
    with monkeypatch.context() as patch:
        patch.setattr(FamilyWatch, "is_due", True)
        patch.setattr(FamilyWatch, "has_drifted", lambda *_: True)
        train(tried, 1)
    train(tried, 4)
    assert not checks and other.num_forgotten == 1
    train(tried, 1)
    assert checks == [(5, True)]


def train_several(step: FamilyStep, num_steps: int = 4) -> Any:
    return step.step(((tf.zeros([4, 2]),) * num_steps,), {}, num_steps)


def test_graphs_of_several_steps_run_until_step_times_change_and_strategies_are_compared(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried._candidates, "check", lambda *_: None)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))
    monkeypatch.setattr(family_step, "choose_fastest", lambda _: FIRST)
    train(tried, 33)
    for _ in range(100):
        assert tried.settled and tried.runs_several
        train_several(tried)
    first.step_seconds *= 3
    num_calls = 0
    while tried.settled and num_calls < 2000:  # `retune_overhead` limits trials
        train_several(tried)
        num_calls += 1
    assert 8 < num_calls < 2000  # two comparisons at least
    assert first.step_number == 33 + 4 * (100 + num_calls)
    monkeypatch.setattr(family_step, "choose_fastest", lambda _: OTHER)
    train(tried, 5 + 32)
    assert train(tried, 1) == ["other"] and tried.settled and not tried.runs_several


def test_script_that_runs_several_steps_before_trials_end_trains_by_data_parallelism(
    first: DataParallelism, tried: FamilyStep, other: Other
) -> None:
    train_several(tried)
    assert tried.settled and tried.runs_several
    assert tried._candidates.left_out == {OTHER: SEVERAL}
    assert train(tried, 2) == [first.step_number - 1, first.step_number]
    assert not other.undoable


def cost_of_trials(step: FamilyStep) -> TrialCost:
    cost = step._clock.cost
    assert cost is not None and cost.describe() in step.explain()
    return cost


def test_share_of_trials_falls_while_training_goes_on(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written once trials have ended, and again after twice as many steps."""
    written: list[TrialCost] = []

    def write(_: Any, families: FamilyComparison, step: int) -> None:
        assert families.trials is not None and step == 33
        written.append(families.trials)

    monkeypatch.setattr(family_step, "record_families", write)
    monkeypatch.setattr(family_step, "choose_fastest", lambda _: FIRST)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))
    train(tried, 33)
    assert [(cost.num_steps, cost.share) for cost in written] == [(33, 1.0)]
    train(tried, 99)
    assert cost_of_trials(tried).num_steps == 33
    assert cost_of_trials(tried).share == pytest.approx(0.16, abs=0.1)  # some took no time
    assert len(written) == 3 and written[1].share == pytest.approx(0.35, abs=0.2)
    train_several(tried, 68)
    assert len(written) == 3
    first.rendezvous.is_over = True
    train(tried, 1)
    assert cost_of_trials(tried).num_steps == 1


def set_times(
    first: DataParallelism, other: Other, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lets a step of data parallelism take 1 ms, and one of the other strategy `seconds`."""
    step = other.step

    def timed(*args: Any) -> str:
        first.now += seconds
        return step(*args)

    monkeypatch.setattr(other, "step", timed)
    monkeypatch.setattr(family_step, "time", SimpleNamespace(perf_counter=first.clock))


def contradict_links(
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
    predicted: float | None = 1e-3,
    link_share: float = 0.5,
) -> None:
    """Lets steps of the other strategy take 2 ms, whatever its plan says of them and of links."""
    set_times(first, other, 2e-3, monkeypatch)
    monkeypatch.setattr(tried._candidates, "leave_out_predicted", lambda: None)
    monkeypatch.setattr(other, "predicted_seconds", predicted)
    monkeypatch.setattr(other, "link_share", link_share)


@pytest.mark.parametrize(
    ("predicted", "link_share", "is_measured"),
    [(1e-3, 0.5, True), (4e-3, 0.5, True), (2.2e-3, 0.5, False), (1e-3, 0.1, False)],
)
def test_links_are_measured_once_more_if_a_trial_contradicts_its_prediction(
    predicted: float,
    link_share: float,
    is_measured: bool,
    first: DataParallelism,
    tried: FamilyStep,
    other: Other,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The contradicted strategy and the fastest one have other turns."""
    contradict_links(first, tried, other, monkeypatch, predicted, link_share)
    train(tried, 33)
    assert other.num_measured == is_measured and tried.settled is not is_measured
    train(tried, 32 * is_measured)
    assert tried.settled and tried._chosen == FIRST and other.num_measured == is_measured
    assert tried._medians == pytest.approx({FIRST: 1e-3, OTHER: 2e-3}, rel=0.01)


def test_links_are_not_measured_again_without_steps_for_turns(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    contradict_links(first, tried, other, monkeypatch)
    limit_trials(monkeypatch, max_steps=40)
    train(tried, 33)
    assert tried.settled and not other.num_measured


def test_trials_that_take_too_long_after_links_were_measured_again_keep_the_first_times(
    first: DataParallelism, tried: FamilyStep, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    contradict_links(first, tried, other, monkeypatch)
    train(tried, 33)
    assert other.num_measured == 1 and not tried.settled
    limit_trials(monkeypatch, max_seconds=1e-9)
    train(tried, 1)
    assert tried.settled and tried._chosen == FIRST and not tried._candidates.left_out
    assert tried._medians == pytest.approx({FIRST: 1e-3, OTHER: 2e-3}, rel=0.01)
