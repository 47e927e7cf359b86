"""What the scaling benchmark computes, and that its ranks do what it measures."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import native, scaling
from benchmarks.scaling import Measured, simulated_seconds


@given(
    num_ranks=st.integers(2, 24),
    per_peer=st.floats(1e-6, 1.0),
    num_cores=st.integers(1, 24),
)
def test_nobody_is_faster_than_what_has_to_be_done(
    num_ranks: int, per_peer: float, num_cores: int
) -> None:
    seconds = simulated_seconds(num_ranks, per_peer, num_cores)
    # A rank has to do with every other one in turn, and a core with its share of all that.
    least = max(num_ranks - 1, num_ranks * (num_ranks - 1) / num_cores) * per_peer
    # Rank r waits for none longer than until the lower ones are through with each other.
    most = max(2 * num_ranks - 3, num_ranks * (num_ranks - 1) / num_cores) * per_peer
    assert least * (1 - 1e-9) <= seconds <= most * (1 + 1e-9)
    assert seconds <= simulated_seconds(num_ranks + 1, per_peer, num_cores)
    measured = Measured(num_ranks, seconds, 0.0, 0.0, 0, 0)
    assert scaling.fitted(measured, num_cores) == pytest.approx(per_peer)


def test_two_ranks_meet_once() -> None:
    assert simulated_seconds(2, 0.5, 2) == 0.5
    assert simulated_seconds(1, 0.5, 1) == 0.0


def test_what_grows_by_rank_is_continued() -> None:
    jobs = [Measured(n, 1.0, 1.0, 1.0, 3 + 4 * n, 1000 * n) for n in (16, 64, 256)]
    assert scaling.continued(jobs, "descriptors", 2048) == pytest.approx(3 + 4 * 2048)
    text = scaling.table(jobs, num_cores=2)
    assert "| 2048 | " in text and "8,195" in text


@pytest.fixture(scope="module")
def built_programs() -> Path:
    return native.build("scaling")


@pytest.mark.parametrize(
    ("host", "num_ranks", "num_lanes"), [("127.0.0.1", 64, 1), ("unix:", 8, 2)]
)
def test_real_ranks_meet_agree_and_all_reduce(
    built_programs: Path, host: str, num_ranks: int, num_lanes: int
) -> None:
    found = scaling.measure(built_programs, num_ranks, num_lanes, host)
    assert found.num_ranks == num_ranks
    assert 0 < found.setup_seconds <= found.agreed_seconds <= found.reduced_seconds
    # To every other rank a connection per lane and one for messages; to some one for control.
    assert found.descriptors >= (num_ranks - 1) * (num_lanes + 1) + 1
