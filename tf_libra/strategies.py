"""The strategies that a user may choose: one frozen dataclass each, with a name as a string.

Strategies of optional systems, such as pipelines, are looked up when they are first used.
"""

from typing import TYPE_CHECKING, Any

from tf_libra.planning.data_parallel import (
    BY_NAME,
    Aiacc,
    AscWfbp,
    Auto,
    Dear,
    HorovodFusion,
    Libra,
    LibraM,
    MgWfbp,
    Strategy,
    SynEasgd,
    Wfbp,
    register,
    resolve,
)

if TYPE_CHECKING:
    from tf_libra.model_parallel.planning.burst import DeepPool
    from tf_libra.model_parallel.planning.one_rank import OneRank
    from tf_libra.model_parallel.planning.pipeline import (
        DataParallel,
        GPipe,
        HetPipe,
        PipeDream,
        Spp,
    )

__all__ = [
    "BY_NAME",
    "Aiacc",
    "AscWfbp",
    "Auto",
    "DataParallel",
    "Dear",
    "DeepPool",
    "GPipe",
    "HetPipe",
    "HorovodFusion",
    "Libra",
    "LibraM",
    "MgWfbp",
    "OneRank",
    "PipeDream",
    "Spp",
    "Strategy",
    "SynEasgd",
    "Wfbp",
    "register",
    "resolve",
]


def __getattr__(name: str) -> Any:
    from tf_libra.runtime.strategy_kinds import strategy_classes

    found = strategy_classes()
    if name not in found:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found[name]
