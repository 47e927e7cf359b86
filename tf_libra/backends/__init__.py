"""What executes all-reduces, and what carries control between ranks.

Each backend registers itself; they are known in this order.
"""

# isort: off
from tf_libra.backends import lanes_backend as lanes_backend
from tf_libra.backends import horovod_backend as horovod_backend
