"""Frozen values: profiles, plans, layer graphs, clusters, telemetry."""
