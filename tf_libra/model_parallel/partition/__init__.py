"""What each stage computes and sends, and which ranks have it."""
