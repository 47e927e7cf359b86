"""What is kept: plans for the next job, and what TensorBoard shows."""
