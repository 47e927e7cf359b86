import pytest

from tf_libra.autotune import Phase
from tf_libra.runtime.protocol import TuningState

TRIES = {Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE}


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_tunes_or_runs_or_neither(phase: Phase) -> None:
    state = TuningState(phase)
    assert state.is_tuning == (phase in TRIES)
    assert state.is_running == (phase is Phase.RUN)
