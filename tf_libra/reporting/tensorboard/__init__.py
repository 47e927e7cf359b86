"""Libra tab of TensorBoard: requests about a log directory, their answers, the front end."""
