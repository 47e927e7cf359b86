"""Launcher of `tf-libra run`: local ranks or Horovod's ranks, with a summary of the job's end."""

# Set in the environment of workers of `tf-libra run`.
LAUNCHED_VARIABLE = "TF_LIBRA_LAUNCHED"
TRACEBACK_VARIABLE = "TF_LIBRA_TRACEBACK"
# Selects the launcher whose variables give a process its rank.
SELECT_VARIABLE = "TF_LIBRA_LAUNCHER"
# Secret of the rendezvous, and a file that contains it.
SECRET_VARIABLE = "TF_LIBRA_SECRET"
SECRET_FILE_VARIABLE = "TF_LIBRA_SECRET_FILE"
