"""What is patched and marked while a step is traced."""
