"""Who the ranks of a job are, and what carries control between them."""
