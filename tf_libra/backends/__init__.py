"""Backends that execute all-reduces, and the carriers of control messages between ranks.

Each backend registers itself, in the order of these imports.
"""

# isort: off
from tf_libra.backends import lanes_backend as lanes_backend
from tf_libra.backends import horovod_backend as horovod_backend
