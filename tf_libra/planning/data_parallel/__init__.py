"""Strategies of data-parallel training: tensor fusion and communication threads.

Each module registers its strategies, in the order of these imports.
"""

# isort: off
from tf_libra.planning.data_parallel.static_rules import HorovodFusion, SynEasgd, Wfbp
from tf_libra.planning.data_parallel.mg_wfbp import MgWfbp
from tf_libra.planning.data_parallel.asc_wfbp import AscWfbp
from tf_libra.planning.data_parallel.aiacc import Aiacc
from tf_libra.planning.data_parallel.dear import Dear
from tf_libra.planning.data_parallel.libra_m import LibraM
from tf_libra.planning.data_parallel.libra import Libra
from tf_libra.planning.data_parallel.auto import Auto

# isort: on
from tf_libra.planning.strategy import BY_NAME, REGISTRY, Strategy, register, resolve

__all__ = [
    "BY_NAME",
    "REGISTRY",
    "Aiacc",
    "AscWfbp",
    "Auto",
    "Dear",
    "HorovodFusion",
    "Libra",
    "LibraM",
    "MgWfbp",
    "Strategy",
    "SynEasgd",
    "Wfbp",
    "register",
    "resolve",
]
