from tf_libra.simulation.api import simulate
from tf_libra.simulation.burst import simulate_burst
from tf_libra.simulation.multiplexing import (
    BackgroundJob,
    Interference,
    Multiplexed,
    Multiplexing,
    simulate_multiplexing,
)
from tf_libra.simulation.pipeline import PipelineBlock, PipelineTimeline, simulate_pipeline
from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage

__all__ = [
    "BackgroundJob",
    "GroupSpan",
    "Interference",
    "Multiplexed",
    "Multiplexing",
    "PipelineBlock",
    "PipelineTimeline",
    "Timeline",
    "TimelineStage",
    "simulate",
    "simulate_burst",
    "simulate_multiplexing",
    "simulate_pipeline",
]
