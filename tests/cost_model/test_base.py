"""The costs that follow from the rates of a cost model, for a form that is not shipped."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tf_libra.cost_model import CostModel


@dataclass(frozen=True)
class Flat(CostModel):
    """Rates that threads do not change."""

    num_workers: int = 4
    rate: float = 100.0

    startup_seconds = 0.5
    exclusive_startup_seconds = 0.25

    def compute_rate(self, num_threads):
        return np.full(np.shape(num_threads), 0.8)

    def overlapped_rate(self, num_threads):
        return np.full(np.shape(num_threads), self.rate / 2)

    def exclusive_rate(self, num_threads):
        return np.full(np.shape(num_threads), self.rate)

    def with_workers(self, num_workers):
        return replace(self, num_workers=num_workers)

    def contention_free(self):
        return self

    def formula(self):
        return "flat"

    def to_json(self):
        return "{}"


def test_a_ring_sends_two_parts_less_its_own():
    for workers, factor in ((1, 0.0), (2, 1.0), (4, 1.5)):
        assert Flat(workers).transmitted_bytes(200) == pytest.approx(200 * factor)


def test_seconds_are_bytes_over_rates():
    model = Flat()
    assert model.overlapped_seconds(100, 1) == pytest.approx(3.0)
    assert model.exclusive_seconds(100, 1) == pytest.approx(1.5)
    assert model.computation_seconds(2.0, 1) == pytest.approx(2.5)


def test_an_all_reduce_of_nothing_is_not_launched():
    sizes = np.array([[0], [100]])
    np.testing.assert_allclose(Flat().overlapped_all_reduce(sizes, [1, 2]), [[0, 0], [3.5, 3.5]])
    np.testing.assert_allclose(Flat().exclusive_all_reduce(sizes, [1, 2]), [[0, 0], [1.75, 1.75]])


def test_what_says_no_rates_is_no_model():
    with pytest.raises(TypeError, match="abstract"):
        CostModel()
