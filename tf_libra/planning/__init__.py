from tf_libra.planning.explain import Alternative, Explanation, GroupExplanation, explain
from tf_libra.planning.planner import make_plan

__all__ = ["Alternative", "Explanation", "GroupExplanation", "explain", "make_plan"]
