from tf_libra.simulation.pipeline import PipelineBlock, PipelineTimeline, simulate_pipeline
from tf_libra.simulation.simulator import simulate
from tf_libra.simulation.timeline import GroupSpan, Stage, Timeline

__all__ = [
    "GroupSpan",
    "PipelineBlock",
    "PipelineTimeline",
    "Stage",
    "Timeline",
    "simulate",
    "simulate_pipeline",
]
