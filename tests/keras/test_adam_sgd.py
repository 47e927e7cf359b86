"""The example's optimizer: Adam at the beginning, SGD at the end, in between what lies between."""

import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RATE = 0.01


@pytest.fixture(scope="module")
def adam_sgd():
    """The example, without what it does when it is run."""
    path = EXAMPLES / "adam_sgd.py"
    spec = importlib.util.spec_from_file_location("adam_sgd", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(EXAMPLES))
    import os

    cores = os.sched_getaffinity(0)
    try:
        spec.loader.exec_module(module)
    finally:
        os.sched_setaffinity(0, cores)  # the example takes one
        sys.path.remove(str(EXAMPLES))
    return module


def trained(optimizer, steps: int = 6) -> list[np.ndarray]:
    """A variable after each of some steps with the same gradients."""
    variable = keras.Variable(np.linspace(-1, 1, 5), dtype="float64")
    random = np.random.default_rng(0)
    seen = []
    for _ in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(random.normal(size=5))], [variable])
        seen.append(variable.numpy().copy())
    return seen


def test_it_begins_as_adam(adam_sgd) -> None:
    ours = trained(adam_sgd.AdamSgd(RATE, mixing_steps=10**9))
    np.testing.assert_allclose(ours, trained(keras.optimizers.Adam(RATE)), rtol=1e-4)


def test_it_ends_as_sgd(adam_sgd) -> None:
    mixed = trained(adam_sgd.AdamSgd(RATE, mixing_steps=1, sgd_scale=3.0))
    alone = trained(keras.optimizers.SGD(3 * RATE))
    # The first step is Adam's, the others are SGD's.
    np.testing.assert_allclose(np.diff(mixed, axis=0), np.diff(alone, axis=0), rtol=1e-9)


def test_shares_fall_linearly(adam_sgd) -> None:
    """Halfway an update is the mean of both."""
    half = adam_sgd.AdamSgd(RATE, mixing_steps=2, sgd_scale=1.0)
    first, second = trained(half, 2)
    adam = trained(keras.optimizers.Adam(RATE), 2)
    sgd = trained(keras.optimizers.SGD(RATE), 2)
    expected = ((adam[1] - adam[0]) + (sgd[1] - sgd[0])) / 2
    np.testing.assert_allclose(second - first, expected, rtol=1e-4)


def test_rate_falls_linearly(adam_sgd) -> None:
    decay = adam_sgd.linear_decay(0.1, 4)
    assert [float(decay(step)) for step in range(5)] == pytest.approx([0.1, 0.075, 0.05, 0.025, 0])


def test_it_is_saved_with_a_model(adam_sgd) -> None:
    optimizer = adam_sgd.AdamSgd(RATE, mixing_steps=7, sgd_scale=2.0)
    again = adam_sgd.AdamSgd.from_config(optimizer.get_config())
    assert (again.mixing_steps, again.sgd_scale) == (7, 2.0)
    with pytest.raises(ValueError, match=r"mixing_steps.*1,.*0"):
        adam_sgd.AdamSgd(mixing_steps=0)
