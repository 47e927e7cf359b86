"""The warm starts that jobs leave to similar jobs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tf_libra.autotune.warm_start import JobSignature, LayerSignature, PlanOutline, WarmStart
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.reporting.records import starts

JOB = JobSignature((LayerSignature(8, "float32"), LayerSignature(80, "float16")), 4, 2)
START = WarmStart(JOB, "aiacc", PlanOutline((0.5, 1.0), (1, 2), (0, 1)), (CommConfig(2**20, 2, 1),))


def test_reads_what_it_wrote_the_latest_first(tmp_path: Path) -> None:
    other = WarmStart(JOB, "libra", START.outline)
    for index, one in enumerate((START, other)):
        os.utime(starts.store(tmp_path, one), (index, index))
    assert starts.load(tmp_path) == ([other, START], [])


def test_the_same_job_has_one(tmp_path: Path) -> None:
    starts.store(tmp_path, START)
    newer = WarmStart(
        JOB, "aiacc", START.outline, (CommConfig(2**18, 1, 1), CommConfig(2**20, 2, 1))
    )
    starts.store(tmp_path, newer)
    assert starts.load(tmp_path) == ([newer], [])


def test_each_network_has_its_own(tmp_path: Path) -> None:
    """However exactly its rate was measured."""

    def at(rate: float, units: int) -> WarmStart:
        job = replace(JOB, bytes_per_second=rate)
        return WarmStart(job, "aiacc", START.outline, (CommConfig(units, 2, 1),))

    kept = [at(1.1e8, 1), at(1.2e8, 2), at(3e9, 3)]
    for index, one in enumerate((START, *kept)):
        os.utime(starts.store(tmp_path, one), (index, index))
    assert starts.load(tmp_path) == ([kept[2], kept[1], START], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value["job"].update(bytes_per_second=-1.0), "bytes_per_second must be"),
        (lambda value: value["job"].update(num_workers=0), "num_workers must be"),
        (lambda value: value["outline"].update(stops=[2.0, 1.0]), "stops must"),
        (lambda value: value["settings"][0].update(unit_bytes="much"), "unit_bytes must"),
        (lambda value: value.pop("job"), "job"),
        (lambda value: value.update(version=99), "version"),
    ],
)
def test_what_is_damaged_is_named_and_the_others_are_read(
    tmp_path: Path, change, message: str
) -> None:
    path = starts.store(tmp_path, START)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    other = WarmStart(JOB, "libra", START.outline)
    starts.store(tmp_path, other)
    found, problems = starts.load(tmp_path)
    assert found == [other]
    assert len(problems) == 1 and path.name in problems[0] and message in problems[0]


def test_what_an_earlier_version_has_kept_is_read(tmp_path: Path) -> None:
    path = starts.store(tmp_path, START)
    value = json.loads(path.read_text())
    value["setting"] = value.pop("settings")[0]
    assert "bytes_per_second" not in value["job"]
    path.write_text(json.dumps(value))
    assert starts.load(tmp_path) == ([START], [])


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    path = starts.store(tmp_path, START)
    path.write_text('{"format": "tf-libra sta')
    found, [problem] = starts.load(tmp_path)
    assert found == [] and path.name in problem


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert starts.load(tmp_path / "none") == ([], [])
