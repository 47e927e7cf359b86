"""A step in stages, of pipelines and of bursts: recorded, cut, planned and executed."""
