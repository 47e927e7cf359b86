"""Shared fixtures of the tests of calls under a plan."""

from collections.abc import Iterator

import pytest

from tests.runtime.alone import LANES
from tf_libra import config
from tf_libra.backends.engine import Engine
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.plan_activation import PlanActivator


@pytest.fixture
def activator(engine: Engine) -> Iterator[PlanActivator]:
    """Under the module's engine; whatever becomes of the test, no plan of it stays registered."""
    activator = PlanActivator(engine, LANES, RunReporter(config.resolve({})))
    yield activator
    activator.release(all_but=None)
