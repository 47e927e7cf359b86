"""The costs that follow from the rates of a cost model, for a form that is not shipped."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.cost_model import ContentionModel, CostModel, base
from tf_libra.cost_model.base import row_of_square


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

    def with_link_rate(self, factor):
        return replace(self, rate=self.rate * factor)

    def contention_free(self):
        return self

    def one_phase(self):
        return replace(self, rate=2 * self.rate)

    def formula(self):
        return "flat"

    def to_json(self):
        return "{}"

    def _on_wire(self, share, rounding):
        return self


def test_ring_transmits_equation_4_bytes():
    for workers, factor in ((1, 0.0), (2, 1.0), (4, 1.5)):
        assert Flat(workers).transmitted_bytes(200) == pytest.approx(200 * factor)


def test_seconds_are_bytes_over_rates():
    model = Flat()
    assert model.overlapped_seconds(100, 1) == pytest.approx(3.0)
    assert model.exclusive_seconds(100, 1) == pytest.approx(1.5)
    assert model.computation_seconds(2.0, 1) == pytest.approx(2.5)


def test_empty_all_reduce_takes_zero_time():
    sizes = np.array([[0], [100]])
    np.testing.assert_allclose(Flat().overlapped_all_reduce(sizes, [1, 2]), [[0, 0], [3.5, 3.5]])
    np.testing.assert_allclose(Flat().exclusive_all_reduce(sizes, [1, 2]), [[0, 0], [1.75, 1.75]])


def test_model_without_rates_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        CostModel()


GRID = Path(__file__).resolve().parents[2] / "ops" / "lanes" / "grid.h"


def test_least_grid_equals_that_of_lanes() -> None:
    assert f"static constexpr int kLeastSquare = {base.LEAST_SQUARE};" in GRID.read_text()
    assert row_of_square(base.LEAST_SQUARE - 1) is None
    assert row_of_square(base.LEAST_SQUARE) == 4


def test_rows_are_the_longer_side() -> None:
    assert [row_of_square(num) for num in (17, 18, 22, 24, 60, 64)] == [None, 6, 11, 6, 10, 8]
    assert row_of_square(6) is None
    assert [row_of_square(num, least=4) for num in (3, 4, 5, 6, 9)] == [None, 2, None, 3, 3]


@given(st.integers(1, 5000))
def test_row_belongs_to_the_squarest_grid(num_hosts: int) -> None:
    row = row_of_square(num_hosts)
    sides = [a for a in range(2, num_hosts) if num_hosts % a == 0]
    if row is None:
        assert not sides or num_hosts < base.LEAST_SQUARE
    else:
        assert row == min(side for side in sides if side >= math.sqrt(num_hosts))


def test_waiting_takes_time_and_leaves_computation_its_speed():
    model = ContentionModel(2, 5e-4, (0.5, 0.0), (1e9, 0, 0), (1e9, 0, 0), waiting=3e-3)
    working = model.without_waiting()
    sizes = np.array([0, 2_000_000])
    for duration in ("overlapped_all_reduce", "exclusive_all_reduce"):
        waited = getattr(model, duration)(sizes, 1) - getattr(working, duration)(sizes, 1)
        assert waited == pytest.approx([0, 3e-3])
    # 1 ms of startup overhead and 2 ms of transmission at half the speed, 3 ms at full speed.
    assert model.mean_compute_rate(sizes, 1) == pytest.approx([0.5, 0.75])
    assert working.mean_compute_rate(sizes, 1) == pytest.approx([0.5, 0.5])
    assert model.with_workers(1).exclusive_all_reduce(100, 1) == 0
    assert model.contention_free().waiting == model.waiting
    assert ContentionModel.from_json(model.to_json()) == model
