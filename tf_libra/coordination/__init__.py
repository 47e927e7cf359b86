"""Jobs, their ranks, and the control plane between the ranks."""
