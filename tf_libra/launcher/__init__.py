"""Launcher of `tf-libra run`: Horovod's, with a summary of how the job ended."""

# Set in the environment of workers of `tf-libra run`.
LAUNCHED_VARIABLE = "TF_LIBRA_LAUNCHED"
TRACEBACK_VARIABLE = "TF_LIBRA_TRACEBACK"
