"""Cache of tuning results in `cache_dir`, which jobs of the same kind share."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tf_libra.autotune import TensorSpec, TuningResult
from tf_libra.autotune.warm_start import (
    MAX_SETTINGS,
    JobComparison,
    JobSignature,
    PlanOutline,
    WarmStart,
)
from tf_libra.reporting.records import plan_store
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class PlanCache:
    """Cache of the tuning result for one set of gradients.

    Attributes:
        folder: None to cache nothing.
        key: what has to be the same for it to be used again.
        log: where to say what fails, which is no reason to end the training.
        job: for which others may be looked up that are alike; None for none.
        strategy: what it is planned with.
    """

    folder: Path | None
    key: str
    log: logging.Logger
    job: JobSignature | None = None
    strategy: str = ""

    @classmethod
    def of(
        cls,
        folder: Path | None,
        log: logging.Logger,
        tensors: Sequence[TensorSpec],
        strategy: Any,
        num_workers: int,
        circumstances: Mapping[str, str],
    ) -> "PlanCache":
        """For these gradients, in backward order, under these circumstances."""
        key = plan_store.fingerprint(tensors, strategy, num_workers, dict(circumstances))
        job = JobSignature.of(tensors, num_workers, int(circumstances.get("local_size", "1")))
        return cls(folder, key, log, job, strategy.name)

    def load(self, check: Callable[[Plan], None]) -> TuningResult | None:
        """Returns the result that an earlier job has cached; None if there is nothing to use.

        Args:
            check: raises `ValueError` for a plan that cannot be used here.
        """
        if self.folder is None:
            return None
        try:
            conclusion = plan_store.load_plan(self.folder, self.key)
            if conclusion is not None:
                check(conclusion.plan)
        except (OSError, ValueError) as error:
            self.log.warning("cache_dir: what is kept cannot be used, measuring anew: %s", error)
            return None
        return conclusion

    def nearest(self) -> Callable[[float | None], WarmStart | None]:
        """Returns a function that finds the most similar job, by the network's bytes per second.

        The cache is read now, and graphs are compared, which may take seconds. So call it before
        the first step: other ranks would wait for it between two steps.
        """
        job = self.job
        if self.folder is None or job is None:
            return lambda bytes_per_second: None
        known, problems = plan_store.load_warm_starts(self.folder)
        for problem in problems:
            self.log.warning("cache_dir: what is kept cannot be read: %s", problem)
        # What was found in the same way, if there is any: the rest says less.
        own = [one for one in known if one.strategy == self.strategy]
        return JobComparison.of(job, own or known).nearest

    def store(self, conclusion: TuningResult) -> None:
        """Keeps it, unless a short budget or a busy profiler led to it, which is not to stay."""
        if self.folder is None or not conclusion.is_complete:
            return
        try:
            plan_store.store_plan(self.folder, self.key, conclusion)
            if self.job is None:
                return
            searched = () if conclusion.search is None else conclusion.search.seconds
            settings = tuple(searched)[:MAX_SETTINGS]
            outline = PlanOutline.of(conclusion.plan)
            job = replace(self.job, bytes_per_second=conclusion.bytes_per_second)
            plan_store.store_warm_start(
                self.folder, WarmStart(job, self.strategy, outline, settings)
            )
        except OSError as error:
            self.log.warning("cache_dir: nothing could be kept: %s", error)
