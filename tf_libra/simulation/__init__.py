from tf_libra.simulation.api import simulate
from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage

__all__ = ["GroupSpan", "Timeline", "TimelineStage", "simulate"]
