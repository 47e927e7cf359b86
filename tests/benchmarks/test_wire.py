"""The benchmark, run for real on a tiny model, and what it makes of step times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import wire

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import numpy as np

def build():
    import keras
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, use_bias=False)])
    return model, np.zeros((4, 8), "f"), np.zeros((4, 16), "f"), keras.losses.mean_squared_error
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(MODEL)
    command = [sys.executable, "-m", "benchmarks.wire", f"--model={folder}/mine.py:build"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.workers
def test_moves_what_an_all_reduce_moves(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(tmp_path, "--rounds=3", f"--json={out}", "--unpinned")
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    settings = document["settings"]
    # 2(N-1)/N of the gradients, with two workers.
    assert settings["num_bytes"] == settings["sent_bytes"] == 4 * 8 * 16
    assert settings["transport"] == "Unix sockets"
    assert settings["pinned"] is False
    for seconds in (document["wall_seconds"], document["core_seconds"]):
        assert 0 < seconds["p10"] <= seconds["median"] <= seconds["p90"]
    assert document["limit_seconds"] is document["shares"] is None
    assert f"congestion control {settings['congestion_control']}" in done.stdout


def test_measurements_of_another_job_are_rejected(tmp_path: Path) -> None:
    before = tmp_path / "step_time.json"
    settings = {"np": 2, "network": "one host", "model": "mlp", "pinned": True}
    before.write_text(json.dumps({"strategies": {"none": {}, "horovod": {}}, "settings": settings}))
    done = run(tmp_path, f"--against={before}")
    assert done.returncode == 2
    assert "--against is of another job: model is 'mlp', not" in done.stderr
    for content in ("no JSON", '{"strategies": {"none": {}}}'):
        before.write_text(content)
        assert "--against" in run(tmp_path, f"--against={before}").stderr


def test_shares_are_of_what_horovod_loses_to_the_limit() -> None:
    seconds = {"none": 0.1, "horovod": 0.2, "libra": 0.14, "wfbp": 0.22}
    strategies = {name: {"median_seconds": value} for name, value in seconds.items()}
    found = wire.evaluate(0.02, strategies)
    assert found["limit_seconds"] == pytest.approx(0.12)
    assert found["shares"] == pytest.approx({"libra": 0.75, "wfbp": -0.25})


def test_nothing_is_to_be_won_where_horovod_is_at_the_limit() -> None:
    strategies = {name: {"median_seconds": 0.1} for name in ("none", "horovod", "libra")}
    assert wire.evaluate(0.02, strategies)["shares"] is None
