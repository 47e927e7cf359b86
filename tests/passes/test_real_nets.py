"""Real steps through TensorFlow's whole way of a graph: nothing waits for itself, all is trained.

What TensorFlow does to a graph after Grappler, oneDNN's rewrites above all, is not in a GraphDef
that could be looked at: so the steps are run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.workers
@pytest.mark.parametrize(("onednn", "num_nets"), [("1", 15), ("0", 6)], ids=["1", "0"])
def test_every_net_is_trained_as_without_the_pass(onednn: str, num_nets: int) -> None:
    env = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": onednn, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.passes.real_nets"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) == num_nets
    for result in results:
        assert "error" not in result, result
        assert result["moved"] > 1e-5, result
        # oneDNN's sums may be in another order where it merged other nodes.
        assert max(result["deviation"]) <= 1e-3 * result["moved"], result
        assert not any(result["skipped"]), result
