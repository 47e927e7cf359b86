"""The script of the README, as a reader would save and start it."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.worker_processes import Job, launched

README = Path(__file__).resolve().parents[1] / "README.md"
LOGDIR = "runs/first"


def test_script_trains_to_a_plan_that_the_tab_can_show(
    run_job: Callable[..., Job], tmp_path: Path
) -> None:
    text = README.read_text()
    [script] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert script.startswith("# train.py") and "tf-libra run -np 2 python train.py" in text
    assert f"tensorboard --logdir {LOGDIR}" in text and script.count(LOGDIR) == 1
    runs = tmp_path / LOGDIR
    (tmp_path / "train.py").write_text(script.replace(LOGDIR, str(runs)))
    output = run_job(str(tmp_path / "train.py"), 2, launcher=launched).output(0)
    assert "Traceback" not in output
    written = {path.name for path in runs.rglob("*")}
    assert {"plan.json", "cost_model.json"} <= written, output
    assert any(name.startswith("events.out.tfevents") for name in written)
