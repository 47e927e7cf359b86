"""A step's trace: where its layers end, and what each of its ops is of."""
