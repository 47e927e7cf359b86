from tf_libra.planning.planner import make_plan

__all__ = ["make_plan"]
