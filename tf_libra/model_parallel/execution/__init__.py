"""One rank's part of a step in stages, at work."""
