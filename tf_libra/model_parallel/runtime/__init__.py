"""Life of a decorated step whose layers run on ranks of their own."""
