"""The ranks of a job, and the transports that carry control between them."""
