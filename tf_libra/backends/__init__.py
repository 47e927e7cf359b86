"""Backends that execute all-reduces, and transports of control messages between ranks.

Importing the package registers the backends, in the order of these imports.
"""

# isort: off
from tf_libra.backends import lanes_backend as lanes_backend
from tf_libra.backends import horovod_backend as horovod_backend
