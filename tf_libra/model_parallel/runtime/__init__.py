"""Runtime of a decorated step whose layers are divided among ranks."""
