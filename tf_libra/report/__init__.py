"""What a run has left behind, for those who look at it without TensorBoard."""
