"""The training of `elastic.py` in one process: `elastic_alone.py STEPS FILE.npz`."""

import sys

import models
import numpy as np
import tensorflow as tf

STEPS, FILE = sys.argv[1:]

model = models.HandWritten("float64", "momentum")
step = tf.function(model.step)
for number in range(int(STEPS)):
    step(*models.batch(number, 1, "float64"))
np.savez(FILE, **model.weights())
