import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.gpu import report

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / report.RESULTS


def test_the_page_shows_the_committed_results() -> None:
    block = report.blocks(RESULTS)["gpu_results"]
    assert block in (ROOT / report.PAGE).read_text()
    for folder in RESULTS.iterdir():
        training = json.loads((folder / "training.json").read_text())["results"]["models"]
        for model in training.values():
            shown = f"{model['strategies']['ddp']['backward_seconds']['median'] * 1e3:.1f}"
            assert re.search(rf"`ddp` .*\| {re.escape(shown)} \|", block)


def test_a_device_with_some_steps_has_their_parts_only(tmp_path: Path) -> None:
    [whole, *_] = RESULTS.iterdir()
    part = tmp_path / "part"
    part.mkdir()
    shutil.copy(whole / "channels.json", part)
    text = report.blocks(tmp_path)["gpu_results"]
    assert "Channels: as requested" in text and "Bus bandwidth" not in text


def test_results_of_a_dry_run_are_rejected(tmp_path: Path) -> None:
    [whole, *_] = RESULTS.iterdir()
    document = json.loads((whole / "channels.json").read_text()) | {"dry_run": True}
    (tmp_path / "dry").mkdir()
    (tmp_path / "dry" / "channels.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"channels\.json"):
        report.blocks(tmp_path)
