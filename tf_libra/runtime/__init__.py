"""The life of a decorated step: meet, trace, tune, run, end."""
