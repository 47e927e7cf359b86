"""Sizes and strategies of the pipelines."""

import harness
import staged  # noqa: F401 (lets modules of the tests be found)

from tf_libra.strategies import Spp

cases = harness.Cases()
STEPS, SAMPLES, MICROBATCHES = 5, 48, 4
AT_ONCE = {"max_tuning_steps": 2}
SHORT = (24, 24, 3, 24, 1)  # examples of each rank


def in_stages(count, **arguments):
    return Spp(num_microbatches=MICROBATCHES, num_stages=count, **arguments)
