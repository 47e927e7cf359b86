"""Planners of data-parallel training: tensor fusion and communication threads.

Each module registers its strategy, in the order of these imports.
"""

# isort: off
from tf_libra.planning.data_parallel import static_rules as static_rules
from tf_libra.planning.data_parallel import mg_wfbp as mg_wfbp
from tf_libra.planning.data_parallel import asc_wfbp as asc_wfbp
from tf_libra.planning.data_parallel import aiacc as aiacc
from tf_libra.planning.data_parallel import libra_m as libra_m
from tf_libra.planning.data_parallel import libra as libra
from tf_libra.planning.data_parallel import auto as auto
