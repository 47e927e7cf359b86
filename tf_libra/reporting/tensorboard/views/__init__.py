"""Views of a run's records as JSON values, for the tab and for reports.

Pure functions, one module per view. Units are seconds and bytes; tensors and groups are in backward
order. A value without a measurement is None.
"""

# Cards, in the order of the listing.
# isort: off
from tf_libra.reporting.tensorboard.views import pipeline as pipeline
from tf_libra.reporting.tensorboard.views import burst as burst
from tf_libra.reporting.tensorboard.views import background as background
