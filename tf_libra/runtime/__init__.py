"""Life of a decorated step: rendezvous, trace, tuning, run, end."""
