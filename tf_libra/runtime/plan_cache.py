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
from tf_libra.runtime.family_choice import FamilyChoice
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class PlanCache:
    """Cache of the tuning result for one set of gradients.

    Attributes:
        folder: cache folder; None to cache nothing.
        key: digest of everything that has to be the same to use the result again.
        log: receives warnings: a cache that fails does not end the training.
        job: description of this job, to find similar jobs; None to find none.
        strategy: name of the strategy.
    """

    folder: Path | None
    key: str
    log: logging.Logger
    job: JobSignature | None = None
    strategy: str = ""

    @classmethod
    def for_gradients(
        cls,
        folder: Path | None,
        log: logging.Logger,
        tensors: Sequence[TensorSpec],
        strategy: Any,
        num_workers: int,
        environment: Mapping[str, str],
    ) -> "PlanCache":
        """Returns the cache of these gradients, in backward order, in this environment."""
        key = plan_store.fingerprint(tensors, strategy, num_workers, dict(environment))
        job = JobSignature.from_tensors(
            tensors, num_workers, int(environment.get("local_size", "1"))
        )
        return cls(folder, key, log, job, strategy.name)

    def load(self, check: Callable[[Plan], None]) -> TuningResult | None:
        """Returns the result that an earlier job has cached; None if there is no usable result.

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
            self.log.warning("cache_dir: cannot use the cached plan, measuring again: %s", error)
            return None
        return conclusion

    def load_family(self) -> FamilyChoice | None:
        """Returns the family of strategies that won the trials of an earlier job; None without."""
        if self.folder is None:
            return None
        try:
            text = plan_store.load_text(self.folder, self._family_key)
            return None if text is None else FamilyChoice.from_json(text)
        except (OSError, ValueError) as error:
            self.log.warning("cache_dir: cannot use the cached family, trying again: %s", error)
            return None

    def store_family(self, choice: FamilyChoice) -> None:
        """Caches the family of strategies that has won trials."""
        if self.folder is None:
            return
        try:
            plan_store.store_text(self.folder, self._family_key, choice.to_json())
        except OSError as error:
            self.log.warning("cache_dir: cannot store the family: %s", error)

    @property
    def _family_key(self) -> str:
        return f"family-{self.key}"

    def nearest(self) -> Callable[[float | None], WarmStart | None]:
        """Returns a function that finds the most similar job, by the network's bytes per second.

        Call it before the first step. It reads the cache and compares graphs, which may take
        seconds, and between two steps the other ranks would wait for it.
        """
        job = self.job
        if self.folder is None or job is None:
            return lambda bytes_per_second: None
        known, problems = plan_store.load_warm_starts(self.folder)
        for problem in problems:
            self.log.warning("cache_dir: cannot read an earlier result: %s", problem)
        # Results of the same strategy are better starting points.
        own = [start for start in known if start.strategy == self.strategy]
        return JobComparison.compare(job, own or known).nearest

    def store(self, conclusion: TuningResult) -> None:
        """Caches a result, unless a short budget or a busy profiler cut the tuning short."""
        if self.folder is None or not conclusion.is_complete:
            return
        try:
            plan_store.store_plan(self.folder, self.key, conclusion)
            if self.job is None:
                return
            searched = () if conclusion.search is None else conclusion.search.seconds
            settings = tuple(searched)[:MAX_SETTINGS]
            outline = PlanOutline.from_plan(conclusion.plan)
            job = replace(self.job, bytes_per_second=conclusion.bytes_per_second)
            plan_store.store_warm_start(
                self.folder, WarmStart(job, self.strategy, outline, settings)
            )
        except OSError as error:
            self.log.warning("cache_dir: cannot store the result: %s", error)
