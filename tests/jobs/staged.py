"""Shared cases of model-parallel jobs: rejected steps."""

import sys
from pathlib import Path

import harness
import numpy as np
import tensorflow as tf

import tf_libra

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
from tests.model_parallel.job import batches, build_model


def refused(make, strategy, samples=8, **options):
    """Runs a step that must raise and leave all variables unchanged."""
    trained = build_model(make)
    step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
    images, labels = batches(1, samples * harness.SIZE)[0]
    before = [tf.convert_to_tensor(variable).numpy() for variable in trained.variables]
    try:
        step(harness.own(images), harness.own(labels))
    finally:
        for variable, value in zip(trained.variables, before, strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(variable).numpy(), value)
