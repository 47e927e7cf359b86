"""The gain of bursts and a background: the evaluation of measurements, and one short run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bursts

ROOT = Path(__file__).resolve().parents[2]


def way(step: float, background: float) -> dict[str, float]:
    return {"step_seconds": step, "background_per_second": background}


def test_ways_are_compared_with_the_same_training_alone_and_with_all_that_there_is() -> None:
    measurements = {
        "data parallel": way(0.1, 0),
        "data parallel, background": way(0.105, 20),
        "static partition": way(0.2, 50),
        "bursts": way(0.125, 0),
        "bursts, background": way(0.15, 40),
        "background": way(0.0, 100),
    }
    slow = {
        name: way(2 * measurement["step_seconds"], measurement["background_per_second"] / 2)
        for name, measurement in measurements.items()
    }
    found = bursts.evaluate([measurements, slow, measurements])
    assert found["static partition"]["capacity"] == pytest.approx(0.5 + 0.5)
    assert found["data parallel"]["capacity"] == pytest.approx(1.0)
    assert found["bursts, background"]["slowdown"] == pytest.approx(0.2)
    assert found["bursts, background"]["capacity"] == pytest.approx(0.1 / 0.15 + 0.4)
    assert found["background"] == {
        "step_seconds": None,
        "background_per_second": 100,
        "slowdown": None,
        "capacity": 1.0,
    }
    assert found["bursts"]["step_seconds"] == pytest.approx(0.125)


@pytest.mark.workers
def test_every_way_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import numpy as np

def build():
    import keras
    layers = [keras.layers.Dense(32, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(4)])
    data = np.random.default_rng(0)
    loss = keras.losses.sparse_categorical_crossentropy
    return model, data.random((8, 16), np.float32), data.integers(4, size=8), loss
"""
    )
    command = [sys.executable, "-m", "benchmarks.bursts", f"--model={tmp_path}/mine.py:build"]
    flags = ["--rounds=1", "--steps=40", "--seconds=0.3", f"--json={tmp_path}/out.json"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    for name, results in document["ways"].items():
        if "," not in name:  # during training it may get nothing in so few steps
            assert (results["background_per_second"] > 0) == (
                name in ("background", "static partition")
            )
        assert (results["step_seconds"] is None) == (name == "background")
    assert document["ways"]["background"]["capacity"] == pytest.approx(1.0)
    assert "bursts, background" in done.stdout
