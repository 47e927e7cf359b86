"""Fixtures of the tests of pipelines and bursts."""

import pytest


@pytest.fixture(scope="session")
def cached_models() -> None:
    """Keeps modules in one process that train the cached models of `job.py`, whose traces cost."""
