"""The rate of long transfers, on links whose token bucket lets the first bytes through."""

import pytest

from tf_libra.model_parallel.profiling.link_benchmark import lasting_rate

MB = 1 << 20


@pytest.mark.parametrize("rate", [1.25e7, 1.25e8, 6.25e8, 2.5e9])
@pytest.mark.parametrize("bucket", [0, MB, 4 * MB])
@pytest.mark.parametrize("latency", [0.0, 2e-4])
def test_rate_does_not_depend_on_the_token_bucket(rate: float, bucket: int, latency: float) -> None:
    spent = []

    def seconds_of(num_bytes: int) -> float:
        spent.append(latency + max(num_bytes - bucket, 0) / rate + num_bytes / 2e10)
        return spent[-1]

    assert lasting_rate(seconds_of) == pytest.approx(rate, rel=0.2)
    assert sum(spent) < 1.5  # a slow link is not busy for long


@pytest.mark.parametrize(("longest", "rate"), [(0.04, 2 * MB / 0.04), (0.3, 2 * MB / 0.3 / 1.5)])
def test_noise_changes_the_average_by_a_limited_factor(longest: float, rate: float) -> None:
    """The longer transfer seems to take hardly more time, or much more."""
    times = iter((0.035, longest))
    assert lasting_rate(lambda _: next(times)) == pytest.approx(rate)


def test_transfers_too_short_to_measure_have_a_finite_rate() -> None:
    assert 0 < lasting_rate(lambda _: 0.0) < float("inf")
