"""Random cases: how many, and many numbers of a case drawn as one.

Hypothesis takes longer to draw each by itself.
"""

import math
import os

import numpy as np
from hypothesis import strategies as st

# Hypothesis puts one in the place of another at times, so all are of one length: what does not fit
# becomes zeros.
_SIXTEEN = st.binary(min_size=32, max_size=32)


# Environment variable with the share of all random cases to test, as `make check` does.
SHARE = "TESTS_SHARE_OF_EXAMPLES"


def num_examples(count):
    """Returns the number of random cases to test, of `count` in the whole suite."""
    return max(round(count * float(os.environ.get(SHARE, "1"))), 1)


def fractions(draw, count):
    """As many numbers from 0 to 1, of which one of 16 is at each end."""
    drawn = b"".join(draw(_SIXTEEN) for _ in range(math.ceil(count / 16)))
    return np.clip((np.frombuffer(drawn, ">u2", count) - 2.0**12) / (2**16 - 2**13), 0, 1)


def pick(some, fraction):
    """One of these, by a fraction."""
    return some[round(fraction * (len(some) - 1))]


def picks(some, fractions):
    """Returns elements of an array, one for each fraction."""
    return some[np.rint(fractions * (len(some) - 1)).astype(int)]


def mixed(*kinds):
    """An array to pick from in which no kind is much more likely than another."""
    size = math.lcm(*map(len, kinds))
    return np.concatenate([np.repeat(kind, size // len(kind)) for kind in kinds])


def between(low, high):
    """Numbers of which no sums are equal by chance, one of 20 of them each end."""
    numbers = np.sort(np.random.default_rng(0).uniform(low, high, 2000))
    numbers[:100], numbers[-100:] = low, high
    return numbers
