from tf_libra.planning.data_parallel.api import make_plan
from tf_libra.planning.explain import Alternative, Explanation, GroupExplanation, explain

__all__ = ["Alternative", "Explanation", "GroupExplanation", "explain", "make_plan"]
