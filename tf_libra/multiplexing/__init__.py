"""A job of low priority beside training, on what training leaves (DeepPool, section 5)."""
