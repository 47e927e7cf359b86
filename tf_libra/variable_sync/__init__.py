"""Variables of training functions: which are replicated, initial broadcast, and shards."""
