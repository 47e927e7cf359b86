"""What is kept: plans for the next job, and what TensorBoard shows.

What is shown later is facts alone, each a versioned JSON document, one module per kind. Whatever
follows from them, such as a predicted timeline or what half the threads would cost, is computed
where it is shown (`tf_libra.tensorboard.views`), so that writing costs next to nothing.
"""

# isort: off
from tf_libra.records import plan as plan
from tf_libra.records import step as step
from tf_libra.records import timeline as timeline
from tf_libra.records import pipeline as pipeline
from tf_libra.records import burst as burst
from tf_libra.records import background as background
