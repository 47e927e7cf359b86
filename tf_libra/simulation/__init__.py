from tf_libra.simulation.simulator import simulate
from tf_libra.simulation.timeline import GroupSpan, Stage, Timeline

__all__ = ["GroupSpan", "Stage", "Timeline", "simulate"]
