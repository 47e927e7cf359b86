"""Reports of a run: history, text, progress line, files in the log directory."""
