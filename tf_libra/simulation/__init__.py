"""Simulation of data-parallel plans: timelines of a step, and a simulator of tasks on resources."""

from tf_libra.simulation.api import simulate
from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage

__all__ = ["GroupSpan", "Timeline", "TimelineStage", "simulate"]
