"""Options of data-parallel training, which are those of `optimize`.

Each kind of strategy has a dataclass of options, with those of `common_options.py`. The
declarations give the signature and the documentation of `optimize` (`option_spec.py`), the checks
of values, and the options that must be the same on all ranks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict

from tf_libra.autotune import Budget, tuner_for
from tf_libra.config import validators
from tf_libra.config.common_options import Options, resolve_as
from tf_libra.config.option_groups import LEAST_STEPS, Faults, Tuning, strategy_defaults
from tf_libra.config.option_spec import option
from tf_libra.internal import validation
from tf_libra.planning import data_parallel as strategies
from tf_libra.specs.plan import Plan

if TYPE_CHECKING:
    import os

    from tf_libra.specs.burst import BurstPlan
    from tf_libra.specs.one_rank import OneRankPlan
    from tf_libra.specs.pipeline import PipelinePlan


class OptimizeKwargs(TypedDict, total=False):
    """Keyword arguments of `optimize` for static checkers, in the order of the documentation."""

    engine: "str"
    plan: "Plan | PipelinePlan | BurstPlan | OneRankPlan | str | os.PathLike[str] | None"
    logdir: "str | os.PathLike[str] | None"
    cache_dir: "str | os.PathLike[str] | None"
    broadcast_variables: "bool | str"
    local_variables: "Sequence[Any]"
    sparse_as_dense: "bool | str"
    wire_dtype: "str | None"
    error_feedback: "bool"
    inner_gradients: "str"
    shard_updates: "bool | str"
    check_numerics: "str"
    timeout_seconds: "float | None"
    max_tuning_steps: "int | None"
    progress: "bool"
    tuning: "Tuning | None"
    faults: "Faults | None"


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions(Options):
    """Options of data-parallel training, with planned all-reduces."""

    strategy: strategies.Strategy = option(
        "auto",
        "strategies.Strategy | str",
        lambda name, value: strategies.resolve(value),
        "a name or an object of `tf_libra.strategies`.",
        agreed=True,
    )
    plan: Plan | None = option(
        None,
        "Plan | PipelinePlan | BurstPlan | OneRankPlan | str | os.PathLike[str] | None",
        validators.check_plan,
        'plan of the strategy\'s kind, of any kind under "auto", or its JSON file: no tuning.',
    )
    cache_dir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        "folder of the plan cache: later jobs of this model and machines skip tuning.",
    )
    local_variables: tuple[Any, ...] = option(
        (),
        "Sequence[Any]",
        validators.check_local_variables,
        """rank-local variables: names, patterns such as "*/statistics", or objects. They are never
        compared or copied, and their gradients not averaged (docs/scripts.md).""",
        agreed=True,
    )
    inner_gradients: str = option(
        "reject",
        "str",
        validators.one_of("reject", "average", "local"),
        """treatment of gradients that an outer tape differentiates again: "average" reduces them
        over all ranks, "local" does not, "reject" raises.""",
        agreed=True,
    )
    wire_dtype: str | None = option(
        None,
        "str | None",
        validators.check_wire_dtype,
        """lossy: "bfloat16" or "float16" allows plans that round float32 gradients to it between
        ranks, if that is faster (docs/wire_format.md). None: never.""",
        agreed=True,
    )
    error_feedback: bool = option(
        False,
        "bool",
        validation.boolean,
        "with `wire_dtype`: add what rounding loses to the next gradients.",
        agreed=True,
    )
    shard_updates: bool | str = option(
        False,
        "bool | str",
        validators.boolean_or("overlap", "auto"),
        """update and store own parts only (docs/sharded_updates.md). "overlap": gather weights
        under the next forward pass. "auto": if that wins trials of "libra" or "auto".""",
        agreed=True,
    )
    max_tuning_steps: int | None = option(
        None,
        "int | None",
        validators.check_optional_steps,
        f"""most steps before a plan is active. None: the limit of the strategy
        ({strategy_defaults("tuning_steps")}, {strategies.Auto.family_steps} with families).""",
    )
    tuning: Tuning = option(
        None,
        "Tuning | None",
        validators.group(Tuning),
        "a `tf_libra.Tuning`: further limits of tuning.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        tuner_for(self.strategy)
        if self.plan is not None:
            self.backend.check_plan(self.plan)
            if self.plan.wire_dtype not in (None, self.wire_dtype):
                raise ValueError(
                    f"wire_dtype must be {self.plan.wire_dtype!r}, that of the plan, to allow its"
                    f" loss, got {self.wire_dtype!r}"
                )
        if self.error_feedback and self.wire_dtype is None:
            raise ValueError(
                "error_feedback must be False without wire_dtype, as nothing is rounded, got True"
            )
        if self._gathers_weights:
            if self.shard_updates is True:
                raise ValueError(
                    'shard_updates must be "overlap", or left out, with a plan that gathers weights'
                    " under the next forward pass, got True"
                )
            object.__setattr__(self, "shard_updates", "overlap")
        if self.shard_updates not in (False, "auto") and self.shard_conflict:
            got = repr(self.shard_updates)
            if self._gathers_weights:
                got += f", as strategy {self.strategy.name!r} and its plan require"
            raise ValueError(f"shard_updates must be False {self.shard_conflict}, got {got}")
        if self.wire_dtype is not None and not self.backend.rounds_tensors:
            raise ValueError(
                f"wire_dtype must be None with engine={self.engine!r}, which sends tensors as they"
                f" are, got {self.wire_dtype!r}"
            )
        most = self.backend.max_threads
        streams = self.strategy.num_streams if self.backend.runs_streams else 1
        if streams > most:
            raise ValueError(f"streams must be at most {most}, got {streams}")
        for count in self.strategy.allowed_threads:
            if not 1 <= count <= most // streams:
                concurrent = f" for {streams} concurrent all-reduces" if streams > 1 else ""
                allowed = f"between 1 and {most // streams}{concurrent}"
                raise ValueError(
                    f"threads of strategy {self.strategy.name!r} must be {allowed}, got {count}"
                )

    @property
    def _gathers_weights(self) -> bool:
        """True if weights are gathered under the next forward pass."""
        return self.strategy.gathers_weights or (self.plan is not None and bool(self.plan.gathers))

    @property
    def shard_conflict(self) -> str:
        """Another option with which no update is sharded; empty if there is none."""
        if not self.backend.shards_updates:
            return f"with engine={self.engine!r}, whose ranks own no parts of gradients"
        if self.wire_dtype is not None:
            return f"with wire_dtype={self.wire_dtype!r}"
        if self.check_numerics != "off":
            return f"with check_numerics={self.check_numerics!r}, which reads whole gradients"
        return ""

    @property
    def overlaps_calls(self) -> bool:
        """True if weights may be gathered after the end of a call."""
        return self.shard_updates in ("overlap", "auto")

    @property
    def family_conflict(self) -> str:
        """See `Options`."""
        if self.local_variables:
            return "local_variables has variables that ranks do not share"
        if self.shard_updates not in (False, "auto"):
            return "shard_updates leaves slots of which ranks hold parts"
        if self.error_feedback:
            return "error_feedback has rounding errors of gradients that ranks exchange"
        return super().family_conflict

    @property
    def tries_families(self) -> bool:
        """True if strategies of other kinds may replace data parallelism."""
        has_families = bool(getattr(self.strategy, "families", ())) and self.plan is None
        return has_families and not self.family_conflict

    @property
    def _default_limits(self) -> tuple[int, float]:
        """Steps and seconds of all trials that the strategy has by default."""
        if self.tries_families:
            return strategies.Auto.family_steps, strategies.Auto.family_seconds
        return self.strategy.tuning_steps, self.strategy.tuning_seconds

    @property
    def trial_budget(self) -> Budget:
        """Limits of all trials in steps and seconds, those of other families included."""
        default_steps, default_seconds = self._default_limits
        steps, seconds = self.max_tuning_steps or default_steps, self.tuning.max_seconds
        if seconds is not None:
            return Budget(steps, seconds)
        return Budget(steps, default_seconds, LEAST_STEPS)

    @property
    def budget(self) -> Budget:
        """Limits of tuning of data parallelism in steps and seconds."""
        whole = self.trial_budget
        if not self.tries_families:
            return whole
        steps, seconds = self._default_limits
        return dataclasses.replace(
            whole,
            max_steps=max(whole.max_steps * self.strategy.tuning_steps // steps, 1),
            max_seconds=whole.max_seconds * self.strategy.tuning_seconds / seconds,
        )

    @property
    def num_tuning_steps(self) -> int:
        """See `Options`."""
        return self.budget.max_steps

    @property
    def num_lanes(self) -> int:
        """Most concurrent threads of all-reduces."""
        return self.strategy.num_lanes if self.plan is None else self.plan.num_lanes

    @property
    def all_reduce_plan(self) -> Plan | None:
        """User-provided plan of all-reduces."""
        return self.plan

    @property
    def has_error_feedback(self) -> bool:
        """True if rounding errors are added to the next gradients."""
        return self.error_feedback

    def with_backend_threads(self) -> Self:
        """Returns the options with the backend's thread counts if the strategy has its defaults."""
        chosen = self.strategy
        if chosen.allowed_threads != type(chosen)().allowed_threads:
            return self
        return dataclasses.replace(self, strategy=self.backend.default_threads(chosen))


def resolve(kwargs: Mapping[str, Any]) -> DataParallelOptions:
    """Checks the given options of data parallelism; see `resolve_as`."""
    return resolve_as(DataParallelOptions, kwargs)
