"""The computed values of the scaling benchmark, and that its ranks do what it measures."""

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
def test_no_rank_is_faster_than_its_work(num_ranks: int, per_peer: float, num_cores: int) -> None:
    seconds = simulated_seconds(num_ranks, per_peer, num_cores)
    # Rank 0 accepts all others, once the first has called; a core does its share of all that.
    work = num_ranks * (num_ranks - 1)
    least = max(num_ranks, work / num_cores) * per_peer
    # As long as anything is to be done some core does it.
    most = work * per_peer
    assert least * (1 - 1e-9) <= seconds <= most * (1 + 1e-9)
    assert seconds <= simulated_seconds(num_ranks + 1, per_peer, num_cores)
    measured = Measured(num_ranks, seconds, 0.0, 0.0, 0, 0, 0.0)
    assert scaling.fitted(measured, num_cores) == pytest.approx(per_peer)


def test_simulated_seconds_of_few_ranks_match_a_count_by_hand() -> None:
    assert simulated_seconds(1, 0.5, 1) == 0.0
    assert simulated_seconds(2, 0.5, 2) == 1.0  # one calls, the other accepts
    # Both call rank 0, which accepts rank 1 and then rank 2; that calls rank 1, which accepts.
    assert simulated_seconds(3, 0.5, 3) == 2.5
    # Rank 1 accepts no rank before it was accepted; rank 4 calls two at a time.
    #   turn     1    2    3    4    5    6    7    8
    #   rank 0        <1   <2   <3   <4
    #   rank 1   >0        <4        <2   <3
    #   rank 2   >0             >1   <4             <3
    #   rank 3   >0                  >1        >2   <4
    #   rank 4   >0   >1        >2        >3
    assert simulated_seconds(5, 1.0, 5) == 8.0


def test_ranks_call_as_many_at_a_time_as_in_the_engine() -> None:
    source = (native.ROOT / "ops/lanes/connector.cc").read_text()
    assert f"constexpr int kMaxConnecting = {scaling.MAX_CALLS_AT_A_TIME};" in source
    assert "std::min(kMaxConnecting, options_.rank / 2)" in source


def test_growth_by_rank_is_extrapolated() -> None:
    jobs = [Measured(n, 1.0, 1.0, 1.0, 3 + 4 * n, 1000 * n, 0.1) for n in (16, 64, 256)]
    assert scaling.continued(jobs, "descriptors", 2048) == pytest.approx(3 + 4 * 2048)
    text = scaling.table(jobs, num_cores=2, simulated_ranks=[300])
    assert "| 300 | " in text and "1,203" in text


@pytest.fixture(scope="module")
def built_programs() -> Path:
    return native.build("scaling")


@pytest.mark.parametrize(
    ("host", "num_ranks", "num_lanes"), [("127.0.0.1", 64, 1), ("unix:", 8, 2)]
)
def test_real_ranks_connect_agree_and_all_reduce(
    built_programs: Path, host: str, num_ranks: int, num_lanes: int
) -> None:
    found = scaling.measure(built_programs, num_ranks, num_lanes, host)
    assert found.num_ranks == num_ranks
    assert 0 < found.setup_seconds <= found.agreed_seconds <= found.reduced_seconds
    assert found.setup_cpu_seconds > 0
    # To every other rank a connection per lane and one for messages; to some one for control.
    assert found.descriptors >= (num_ranks - 1) * (num_lanes + 1) + 1
