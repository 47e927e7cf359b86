"""Planners of data-parallel training: which gradients are fused, by how many threads.

Each module registers its strategy; they are known in this order.
"""

# isort: off
from tf_libra.planning.data_parallel import fixed as fixed
from tf_libra.planning.data_parallel import mg_wfbp as mg_wfbp
from tf_libra.planning.data_parallel import asc_wfbp as asc_wfbp
from tf_libra.planning.data_parallel import aiacc as aiacc
from tf_libra.planning.data_parallel import libra_m as libra_m
from tf_libra.planning.data_parallel import libra as libra
from tf_libra.planning.data_parallel import auto as auto
