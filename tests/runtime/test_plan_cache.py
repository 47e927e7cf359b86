"""The plans that jobs of the same kind leave to each other."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.autotune.warm_start import JobSignature, LayerSignature
from tf_libra.runtime.plan_cache import PlanCache
from tf_libra.specs.plan import Plan

CONCLUSION = examples.plan_record().conclusion
LOG = logging.getLogger("test of cache")


def accept(plan: Plan) -> None:
    assert plan == CONCLUSION.plan


def refuse(plan: Plan) -> None:
    raise ValueError("made for 3 workers")


def test_complete_result_is_cached_and_loaded(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, "key", LOG)
    assert cache.load(accept) is None
    cache.store(replace(CONCLUSION, is_complete=False))
    assert cache.load(accept) is None
    cache.store(CONCLUSION)
    assert cache.load(accept) == CONCLUSION
    assert replace(cache, key="other").load(accept) is None


def test_similar_job_is_found_by_network_rate(tmp_path: Path) -> None:
    job = JobSignature((LayerSignature(8, "float32"),), 2, 1)
    cache = PlanCache(tmp_path, "key", LOG, job, "libra")
    for rate in (1e8, 1e9):
        cache.store(replace(CONCLUSION, bytes_per_second=rate))
    nearest = cache.nearest()
    for rate, cached_rate in ((1.2e8, 1e8), (2e9, 1e9)):
        found = nearest(rate)
        assert found is not None and found.job == replace(job, bytes_per_second=cached_rate)
    assert nearest(1e11) is None
    assert replace(cache, folder=None).nearest()(1e9) is None


def test_nothing_is_cached_without_a_folder() -> None:
    cache = PlanCache(None, "key", LOG)
    cache.store(CONCLUSION)
    assert cache.load(accept) is None


def test_unusable_result_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = PlanCache(tmp_path, "key", LOG)
    cache.store(CONCLUSION)
    assert cache.load(refuse) is None
    assert "cannot use the cached plan, measuring again: made for 3 workers" in caplog.text


def test_cache_folder_that_cannot_be_created_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    PlanCache(tmp_path / "file" / "folder", "key", LOG).store(CONCLUSION)
    assert "cache_dir: cannot store the result" in caplog.text
