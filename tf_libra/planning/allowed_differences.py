"""Differences to data parallelism that a user may allow other strategies, by name."""

JOINT_RESULTS = "joint_results"
"""Results and metrics of the joint batch, instead of each rank's own examples."""
BATCH_STATISTICS = "batch_statistics"
"""Statistics that the step computes from other examples, as batch normalization does."""
RANDOM_DRAWS = "random_draws"
"""Other random numbers, as dropout draws."""
HOST_EFFECTS = "host_effects"
"""Effects outside of variables, and calls of Python, on the ranks that compute an op alone."""
ALLOWED = (JOINT_RESULTS, BATCH_STATISTICS, RANDOM_DRAWS, HOST_EFFECTS)
"""All of them."""


def describe_allowing(name: str) -> str:
    """Returns a clause that says how to allow a difference."""
    return f'Auto(allow=("{name}",)) accepts this'
