"""Steps in trials, on one of two ranks that do the same."""

import functools
from typing import Any, cast
from unittest import mock

import pytest

from tf_libra.coordination.control_plane import Control, EngineError
from tf_libra.model_parallel.capture import step_arguments
from tf_libra.model_parallel.runtime.agreement import AgreeingControl, check_same_trace
from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining
from tf_libra.model_parallel.runtime.staged_step import StagedTraining
from tf_libra.runtime.protocol import TrialError


class Twin:
    """Control plane of a rank whose twin sends the same messages, but for numbers of traces."""

    rank, world_size, twins_trace, num_messages = 0, 2, -1, 0

    def all_gather(self, message: Any) -> list[Any]:
        self.num_messages += 1
        return [message, self.twins_trace if isinstance(message, int) else message]


class Candidate(CandidateTraining):
    """A step that has run under its plan, and prepares others by doing nothing."""

    _control: Any = AgreeingControl(cast(Control, Twin()))

    def __init__(self) -> None:
        self._has_run_plan, self._traces = True, {}

    def _prepare(self, arguments: Any) -> Any:
        return arguments


def test_arguments_that_stages_do_not_take_end_the_trial_on_all_ranks() -> None:
    """Data parallelism may take them, in a later step, too."""

    def convert() -> Any:
        raise ValueError("unsupported argument of type OwnedIterator")

    candidate = Candidate()
    assert candidate._prepare_together(lambda: (3,)) == (3,)
    with pytest.raises(TrialError, match="OwnedIterator"):
        candidate._prepare_together(convert)


class Planner:
    """Stand-in of a planner that has a plan as soon as it begins, for first arguments alone."""

    num_microbatches, link_share = 1, 0.0
    plan: Any = None
    predicted_seconds: float | None = None

    def __init__(self, user_plan: Any = "given") -> None:
        self.user_plan = user_plan

    def check_batch(self, *_: Any) -> None:
        pass

    def begin(self, *_: Any) -> None:
        self.plan, self.predicted_seconds = "a plan", 1.0


def test_plan_is_made_again_with_layers_that_the_first_arguments_measure() -> None:
    """Until then there is none. That of an earlier job is followed no longer."""
    candidate = Candidate()
    candidate._planner = cast(Any, Planner())
    candidate._planner.begin()
    candidate._make_planner = cast(Any, Planner)
    key = step_arguments.trace_key((3,))
    candidate._traces = {key: cast(Any, mock.Mock()), ("other",): cast(Any, mock.Mock())}
    candidate._identity, candidate._reporter = "step", cast(Any, None)
    candidate._holding = mock.Mock()
    before = candidate._planner
    candidate.plan_again(with_layers=True)
    prepare = functools.partial(CandidateTraining._prepare, candidate)
    with mock.patch.object(StagedTraining, "_prepare", lambda _, arguments: arguments):
        assert prepare((4.5,)) == (4.5,)
        assert candidate._planner is before
        assert (candidate.plan, candidate.predicted_seconds) == (None, None)
        assert prepare((3,)) == (3,)
    after: Any = candidate._planner
    assert (candidate.plan, candidate.predicted_seconds) == ("a plan", 1.0)
    assert after is not before and after.user_plan is None


def test_rank_that_cannot_transfer_sends_no_message_to_ranks_that_wait_for_its_tensors() -> None:
    """No answer would come before their deadline; the job ends, and this rank says why."""
    twin = Twin()
    broken = mock.Mock(side_effect=EngineError("rank 0 cannot receive"))
    with pytest.raises(EngineError, match="cannot receive"):
        AgreeingControl(cast(Control, twin)).together(broken)
    assert twin.num_messages == 0


@pytest.mark.parametrize(("known", "twins_trace"), [([], -1), ([(3.0,), ("3",)], 1)])
def test_ranks_with_the_same_trace_agree(known: list[Any], twins_trace: int) -> None:
    control = Twin()
    control.twins_trace = twins_trace
    check_same_trace(cast(Control, control), known, (3,))


def test_ranks_with_different_objects_raise() -> None:
    with pytest.raises(ValueError, match="Python objects"):
        check_same_trace(cast(Control, Twin()), [("3",)], (3,))
