"""Steps in trials, on one of two ranks that do the same."""

from typing import Any, cast
from unittest import mock

import pytest

from tf_libra.coordination.control_plane import Control, EngineError
from tf_libra.model_parallel.runtime.agreement import AgreeingControl, check_same_trace
from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining
from tf_libra.runtime.protocol import TrialError


class Twin:
    """Control plane of a rank whose twin sends the same messages, but for numbers of traces."""

    rank, twins_trace, num_messages = 0, -1, 0

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
