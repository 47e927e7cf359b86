"""Tests of Optuna's searchers are left out where it is not installed, but never in CI."""

import importlib.util
import os

import pytest

HAS_OPTUNA = importlib.util.find_spec("optuna") is not None

needs_optuna = pytest.mark.skipif(
    not HAS_OPTUNA and not os.environ.get("CI"), reason="Optuna is not installed"
)
