"""Records on disk: cached plans for the next job, and facts for TensorBoard.

Each fact is a versioned JSON document, one module per kind. Derived values, such as a predicted
timeline or the cost of half the threads, are computed for display
(`tf_libra.reporting.tensorboard.views`), so that writing is cheap.
"""

# isort: off
from tf_libra.reporting.records import plan as plan
from tf_libra.reporting.records import step as step
from tf_libra.reporting.records import timeline as timeline
