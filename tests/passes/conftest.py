"""Fixtures of tests whose steps execute: an engine of one rank, and a model."""

from collections.abc import Iterator

import pytest

from tests.passes.traced_steps import Model
from tf_libra.backends import engine


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    address = engine.listen("127.0.0.1")
    running = engine.connect(
        rank=0,
        addresses=[address],
        secret=bytes(engine.SECRET_BYTES),
        num_lanes=4,
        timeout_seconds=60.0,
        stall_warning_seconds=30.0,
    )
    yield
    running.close()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()
