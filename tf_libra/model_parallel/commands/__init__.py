"""Commands `tf-libra pipeline` and `tf-libra burst`."""
