"""What is told: journal, text, progress."""
