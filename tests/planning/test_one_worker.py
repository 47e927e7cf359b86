"""The comparison of N workers with one worker, against the simulator and brute force."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.cost_model import ContentionModel, CostModel, ProcessorModel
from tf_libra.planning import make_plan, simulate
from tf_libra.planning.one_worker import (
    CLEARLY_SLOWER,
    OneWorkerComparison,
    compare_with_one_worker,
    one_worker_seconds,
)
from tf_libra.specs.backward_profile import BackwardProfile

PROFILE = BackwardProfile.from_arrays(
    [40_000_000, 1000, 6_000_000], [4e-3, 1e-3, 5e-3], update_seconds=[2e-3, 0.0, 1e-3]
)
REST = 8e-3


def processor_model(wire_per_byte: float, num_workers: int = 2) -> ProcessorModel:
    return ProcessorModel(num_workers, 1e-4, 1e-10, wire_per_byte)


def compare(cost: CostModel, **options: object) -> OneWorkerComparison | None:
    plan = make_plan(PROFILE, cost, "libra")
    return compare_with_one_worker(PROFILE, plan, cost, REST, **options)  # type: ignore[arg-type]


def test_one_worker_computes_every_share_and_updates_once() -> None:
    assert one_worker_seconds(PROFILE, REST, 3) == pytest.approx(3 * (8e-3 + 10e-3) + 3e-3)


def test_there_is_no_alternative_to_one_worker() -> None:
    assert compare(processor_model(1e-9, num_workers=1)) is None


@settings(max_examples=30, deadline=None)
@given(
    seconds_per_byte=st.floats(1e-10, 1e-7),
    num_workers=st.integers(2, 8),
    is_processor=st.booleans(),
)
def test_factors_are_the_least_that_make_workers_faster(
    seconds_per_byte: float, num_workers: int, is_processor: bool
) -> None:
    rates = (1 / seconds_per_byte, 0.0, 0.0)
    cost: CostModel = (
        processor_model(seconds_per_byte, num_workers)
        if is_processor
        else ContentionModel(num_workers, 1e-5, (1.0, 0.05), rates, rates)
    )
    plan = make_plan(PROFILE, cost, "libra")
    found = compare_with_one_worker(PROFILE, plan, cost, REST)
    assert found is not None
    step = REST + simulate(PROFILE, plan, cost).step_seconds
    alone = one_worker_seconds(PROFILE, REST, num_workers)
    assert found.step_seconds == pytest.approx(step)
    assert found.speedup == pytest.approx(alone / step)
    assert found.is_slower == (step > CLEARLY_SLOWER * alone)

    def is_faster(rate: float, batch: float) -> bool:
        scaled = PROFILE.with_batch(batch)
        step = simulate(scaled, plan, cost.with_link_rate(rate)).step_seconds + batch * REST
        return step < one_worker_seconds(scaled, batch * REST, num_workers)

    candidates = np.geomspace(1, 1024, 400)
    for factor, faster in (
        (found.link_factor, lambda factor: is_faster(factor, 1.0)),
        (found.batch_factor, lambda factor: is_faster(1.0, factor)),
    ):
        least = next((candidate for candidate in candidates if faster(candidate)), None)
        if factor is None:
            assert least is None or least > 500
        else:
            assert least is not None and math.isclose(factor, least, rel_tol=0.04)


def test_measured_step_decides_and_an_untrusted_model_gives_no_remedy() -> None:
    slow = processor_model(8e-9)
    fast = compare(slow, measured_seconds=0.02)
    assert fast is not None and not fast.is_slower
    assert (fast.link_factor, fast.batch_factor) == (1.0, 1.0)
    trusted, untrusted = (
        compare(slow, measured_seconds=0.2),
        compare(slow, measured_seconds=0.2, is_trusted=False),
    )
    assert trusted is not None and untrusted is not None
    assert trusted.is_slower and untrusted.is_slower
    assert trusted.link_factor is not None and trusted.link_factor > 1
    assert (untrusted.link_factor, untrusted.batch_factor) == (None, None)


def test_description_has_ratio_times_and_remedies() -> None:
    found = OneWorkerComparison(2, 0.189, 0.06, 3.41, 12.2)
    text = found.describe()
    for part in ("0.32 times", "189 ms", "60 ms", "links 3.5 times", "a batch 13 times"):
        assert part in text
    faster = dataclasses.replace(found, step_seconds=0.04, link_factor=1.0, batch_factor=1.0)
    assert "1.5 times" in faster.describe() and "links" not in faster.describe()
    helpless = dataclasses.replace(found, link_factor=None, batch_factor=None)
    assert "with one worker" in helpless.describe()
