"""What follows from a run's records and is shown, as JSON values: for the tab and for reports.

Pure functions, a module for each thing that is shown. Seconds and bytes; tensors and groups in
backward order. What cannot be said, because nothing was measured, is None.
"""

# What stands in cards of its own; the list of runs has it in this order.
# isort: off
from tf_libra.tensorboard.views import pipeline as pipeline
from tf_libra.tensorboard.views import burst as burst
from tf_libra.tensorboard.views import background as background
