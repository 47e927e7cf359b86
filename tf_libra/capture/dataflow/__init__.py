"""Data flow of a traced step: where values go, and where they come from."""
