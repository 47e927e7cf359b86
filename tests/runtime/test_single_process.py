"""Training of one process, and Horovod that is missing or of another TensorFlow."""

import json
from typing import Any

import pytest

from tests.worker_processes import Job


@pytest.fixture(scope="session")
def alone(run_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Job:
    broken = tmp_path_factory.mktemp("broken") / "horovod"
    broken.mkdir()
    (broken / "__init__.py").touch()
    (broken / "tensorflow.py").write_text("raise ImportError('undefined symbol: _ZN10tensorflow')")
    job: Job = run_job("alone.py", 1, str(broken.parent))
    return job


def value_of(job: Job, name: str) -> Any:
    return json.loads((job.folder / "alone.0.json").read_text())[name]


def test_single_process_passes_through_with_one_warning(alone: Job) -> None:
    value = value_of(alone, "pass_through")
    assert value["phase"] == "pass-through"
    assert value["same"]
    [reported] = value["log"]
    assert "one process" in reported
    assert "tf-libra run -np 2" in reported
    assert value["plan"] is None
    assert "pass-through" in value["explained"]


def test_fit_in_stages_asks_nothing_of_the_library_where_there_are_no_other_ranks(
    alone: Job,
) -> None:
    value = value_of(alone, "fit_in_stages")
    assert value == {"phase": "pass-through", "trained": True, "libraries": 0}


def test_horovod_of_another_tensorflow_is_one_error_line(alone: Job) -> None:
    error = value_of(alone, "broken_horovod")
    assert error.startswith("ImportError: Horovod is not built for the TensorFlow")
    assert "tools/build_horovod.py" in error
    assert "undefined symbol" in error
    assert "\n" not in error


def test_missing_horovod_is_one_error_line(alone: Job) -> None:
    error = value_of(alone, "missing_horovod")
    assert error.startswith("ImportError: Horovod is ")
    assert "tools/build_horovod.py" in error
    assert "\n" not in error
