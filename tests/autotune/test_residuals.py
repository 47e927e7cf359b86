"""Vectorized residuals against `simulate`."""

import numpy as np
import pytest

from tf_libra.autotune import TensorSpec, random_plans
from tf_libra.autotune.parametric_models import FamilyCosts
from tf_libra.autotune.residuals import CandidateFits, MeasuredSteps
from tf_libra.autotune.sampling_plans import measuring_plans
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import (
    ContentionModel,
    CostModel,
    ProcessorModel,
)
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile

MODELS: list[CostModel] = [
    ProcessorModel(2, 2e-4, 6e-10, 8e-10),
    ContentionModel(2, 1e-4, (1.0, 0.1), (1e9, 1e8, 0.5), (2e9, 1e8, 0.5)),
    ProcessorModel(2, 1e-4, 5e-10, 9e-10, waiting=2e-3),
]


@pytest.mark.parametrize("seed", range(4))
def test_residuals_equal_those_of_simulated_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_bytes = (10 ** random.uniform(2, 7, 12)).astype(int)
    num_bytes[random.integers(12)] = 0
    computed = random.exponential(2e-3, 12) * (random.random(12) > 0.3)
    density = random.random(12) if seed % 2 else np.ones(12)
    profile = BackwardProfile.from_arrays(num_bytes.tolist(), computed, density=density)
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    plans = random_plans(profile, (1, 2, 4), 2, 5, seed=seed, num_groups=(1, 9))
    plans += measuring_plans(specs, [2], 2)
    steps = [
        StepTimes(
            plan,
            0.05 + 0.05 * random.random(),
            random.random((len(plan.groups), 2)),
            random.random(len(plan.groups)),
            random.random(len(plan.groups)) * (random.random(len(plan.groups)) > 0.2),
            1,
        )
        for plan in plans
    ]
    columns = random.uniform(0.5, 2, (4, len(MODELS))) * [[0.03], [0.01], [1.0], [0.02]]
    measured = MeasuredSteps.from_steps(profile, steps)
    sizes_and_threads = measured.num_bytes, measured.threads
    costs = FamilyCosts(
        np.stack(
            [model.without_waiting().overlapped_all_reduce(*sizes_and_threads) for model in MODELS]
        ),
        np.stack(
            [model.without_waiting().exclusive_all_reduce(*sizes_and_threads) for model in MODELS]
        ),
        np.stack([model.compute_rate(measured.threads) for model in MODELS]),
        np.stack([model.waiting * (measured.num_bytes > 0) for model in MODELS]),
    )
    found = measured.residuals(CandidateFits(costs, *columns))
    most = max(len(plan.groups) for plan in plans)
    assert found.shape == (len(MODELS), len(steps) * (1 + 3 * most))
    for row, model in enumerate(MODELS):
        before, after, pace, updates = columns[:, row]
        paced = BackwardProfile.from_arrays(
            num_bytes.tolist(),
            pace * computed,
            update_seconds=updates * num_bytes / num_bytes.sum(),
            density=density,
        )
        missed = []
        for step in steps:
            timeline = simulate(paced, step.plan, model)
            spans = np.array(
                [(group.start_seconds, group.end_seconds) for group in timeline.groups]
            )
            if not step.plan.after_backward:  # traced: durations alone count
                missed.append((before + after + timeline.step_seconds) / step.seconds / 0.02 - 50)
                share = np.full(spans.shape, step.seconds * 0.04 * len(spans) ** 0.5)
                share[-1, 1] = step.seconds * 0.02  # the end of backward
                missed += ((before + spans - step.spans) / share).ravel().tolist()
            known = np.flatnonzero((step.sending > 0) & (np.array(step.plan.group_bytes) > 0))
            sending = (spans[:, 1] - spans[:, 0] - model.waiting)[known]
            errors = np.log(sending / step.sending[known])
            missed += (errors / 0.2 / len(spans) ** 0.5).tolist()
        # Groups that fill up a plan of fewer weigh nothing.
        shown = np.sort(found[row][found[row] != 0])
        assert shown == pytest.approx(np.sort(missed), rel=1e-9)
