"""Simulators of pipeline plans and of burst plans with background jobs."""

from tf_libra.model_parallel.simulation.burst import simulate_burst
from tf_libra.model_parallel.simulation.multiplexing import Multiplexed, simulate_multiplexing
from tf_libra.model_parallel.simulation.multiplexing_parameters import (
    BackgroundJob,
    Interference,
    Multiplexing,
)
from tf_libra.model_parallel.simulation.pipeline import (
    PipelineBlock,
    PipelineTimeline,
    simulate_pipeline,
)

__all__ = [
    "BackgroundJob",
    "Interference",
    "Multiplexed",
    "Multiplexing",
    "PipelineBlock",
    "PipelineTimeline",
    "simulate_burst",
    "simulate_multiplexing",
    "simulate_pipeline",
]
