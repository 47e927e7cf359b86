"""Additions of `tf-libra run` to Horovod's launcher: how a job ended, in its last lines."""

# In the environment of workers that were started by `tf-libra run`.
LAUNCHED_VARIABLE = "TF_LIBRA_LAUNCHED"
TRACEBACK_VARIABLE = "TF_LIBRA_TRACEBACK"
