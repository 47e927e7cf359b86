from tf_libra.planning.burst.planner import make_burst_plan

__all__ = ["make_burst_plan"]
