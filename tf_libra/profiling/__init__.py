"""From a TensorFlow profiler trace and op telemetry to a profile and overlap samples."""
