"""Keyword arguments of `optimize`, for static checkers; `options.py` documents each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tf_libra.config.options import Faults, Tuning
    from tf_libra.specs.burst import BurstPlan
    from tf_libra.specs.plan import Plan


class OptimizeKwargs(TypedDict, total=False):
    """The names and kinds of `options.py`, which tests hold this to; all may be left out."""

    engine: str
    threads: int | Sequence[int] | None
    plan: Plan | BurstPlan | str | os.PathLike[str] | None
    logdir: str | os.PathLike[str] | None
    cache_dir: str | os.PathLike[str] | None
    broadcast_variables: bool | None
    local_variables: Sequence[Any]
    sparse_as_dense: bool
    inner_gradients: str | None
    release_variables: bool
    memory_bytes: float | None
    progress: bool
    tuning: Tuning | None
    faults: Faults | None
    max_tuning_steps: int | None
    max_tuning_seconds: float | None
    max_model_error: float
    tuning_again_share: float
    timeout_seconds: float | None
    stall_warning_seconds: float
    liveness_seconds: float | None
    check_numerics: str | None
