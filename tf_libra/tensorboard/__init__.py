"""The Libra tab of TensorBoard: what it may ask of a log directory, the answers, how they look."""
