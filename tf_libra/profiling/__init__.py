"""Profiling: from profiler traces and op telemetry to backward profiles and overlap samples."""
