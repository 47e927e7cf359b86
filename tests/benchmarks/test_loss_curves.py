"""Tables and pictures of losses, and the data of the trainings."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import loss_curves
from benchmarks.jobs.loss_curves import FORMATS, TRAININGS
from tf_libra.simulation.timeline_plot import save

CURVES = [[4.0] * 18 + [1.0, 3.0], [4.0] * 18 + [2.0, 6.0]]
LOSSES = {"one": dict.fromkeys(FORMATS, CURVES), "two": dict.fromkeys(FORMATS, CURVES)}


def test_table_has_the_mean_of_the_last_losses() -> None:
    assert loss_curves.last_losses(CURVES).tolist() == [2.0, 4.0]
    lines = loss_curves.table(LOSSES).splitlines()
    assert len(lines) == 4
    assert lines[2].count("3.0000 (2.0000 to 4.0000)") == len(FORMATS)


def test_picture_names_every_format(tmp_path: Path) -> None:
    path = tmp_path / "losses.svg"
    save(loss_curves.plot(LOSSES), path, salt="test")
    text = path.read_text()
    assert all(name in text for name in [*FORMATS, *LOSSES])


@pytest.mark.parametrize("name", TRAININGS)
def test_models_fit_their_data(name: str) -> None:
    model, (inputs, labels) = TRAININGS[name]()
    assert len(inputs) == len(labels) > 1000
    outputs = model(inputs[:2]).numpy()
    assert outputs.shape[:-1] == labels[:2].shape
    assert int(np.max(labels)) < outputs.shape[-1]
