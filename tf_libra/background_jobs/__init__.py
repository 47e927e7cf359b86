"""Low-priority background jobs on the resources that training leaves (DeepPool, section 5)."""
