"""Launcher of `tf-libra run`: local ranks or Horovod's ranks, with a summary of the job's end."""

# Set in the environment of workers of `tf-libra run`.
LAUNCHED_VARIABLE = "TF_LIBRA_LAUNCHED"
TRACEBACK_VARIABLE = "TF_LIBRA_TRACEBACK"
