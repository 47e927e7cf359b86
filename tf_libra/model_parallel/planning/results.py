"""Results that a step returns to a rank: for the joint batch, or for its own examples."""

from typing import Annotated, Any

from tf_libra.internal.values import one_of

Results = Annotated[str, one_of(("joint", "own"))]

RESULTS_DOC = (
    'results that a step returns: "joint" for those of the joint batch on every rank, "own" for'
    " those of each rank's own examples, as under data parallelism. Batches must have the same size"
    " on all ranks."
)
"""Description of the field `results` of strategies."""


def returns_own(strategy: Any) -> bool:
    """Returns whether a strategy, perhaps without the field, returns results of own examples."""
    return getattr(strategy, "results", "joint") == "own"
