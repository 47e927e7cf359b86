"""The strategies a user may choose: one frozen dataclass for each, with a name as a string."""

from tf_libra.planning.burst import DeepPool
from tf_libra.planning.data_parallel.aiacc import Aiacc
from tf_libra.planning.data_parallel.asc_wfbp import AscWfbp
from tf_libra.planning.data_parallel.auto import Auto
from tf_libra.planning.data_parallel.libra import Libra
from tf_libra.planning.data_parallel.libra_m import LibraM
from tf_libra.planning.data_parallel.mg_wfbp import MgWfbp
from tf_libra.planning.data_parallel.static_rules import HorovodFusion, SynEasgd, Wfbp
from tf_libra.planning.pipeline import DataParallel, GPipe, HetPipe, PipeDream, Spp
from tf_libra.planning.strategy import BY_NAME, Strategy, register, resolve

__all__ = [
    "BY_NAME",
    "Aiacc",
    "AscWfbp",
    "Auto",
    "DataParallel",
    "DeepPool",
    "GPipe",
    "HetPipe",
    "HorovodFusion",
    "Libra",
    "LibraM",
    "MgWfbp",
    "PipeDream",
    "Spp",
    "Strategy",
    "SynEasgd",
    "Wfbp",
    "register",
    "resolve",
]
