"""Fixtures of tests whose steps execute: an engine of one rank, and a model."""

from collections.abc import Iterator

import pytest

from tests.passes.traced_steps import Model, engine_of_one


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    with engine_of_one():
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()
