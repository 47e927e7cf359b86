"""Options of pipelines, of bursts, and of steps on one rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_libra.config import Options, validators
from tf_libra.config.option_spec import option
from tf_libra.model_parallel.planning import burst, one_rank, pipeline
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.specs.pipeline import PipelinePlan


def _check_engine(name: str, value: Any) -> str:
    if value not in ("auto", "lanes"):
        raise ValueError(f"{name} must be 'lanes' for model-parallel steps, got {value!r}")
    return "lanes"


def _check_numerics(name: str, value: Any) -> str:
    if value not in (None, "off"):
        raise ValueError(f"{name} must be 'off' for model-parallel steps, got {value!r}")
    return "off"


def _check_plan(kind: type[Any]) -> Callable[[str, Any], Any]:
    """Returns the check of a plan of one kind."""
    return lambda name, value: None if value is None else validators.load_document(value, kind)


@dataclass(frozen=True, kw_only=True)
class StagedOptions(Options):
    """Options that all model-parallel steps share."""

    engine: str = option(
        "auto",
        "str",
        _check_engine,
        'transport between ranks: "lanes", or "auto", which is the same.',
        agreed=True,
    )
    check_numerics: str = option(
        "off", "str", _check_numerics, 'must be "off": gradients are not checked.', agreed=True
    )


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(StagedOptions):
    """Options of pipelines."""

    strategy: pipeline.PipelineStrategy = option(
        "spp",
        "PipelineStrategy | str",
        lambda name, value: pipeline.resolve(value),
        "planner of the pipeline.",
        agreed=True,
    )
    plan: PipelinePlan | None = option(
        None,
        "PipelinePlan | str | os.PathLike[str] | None",
        _check_plan(PipelinePlan),
        "a plan or the path of its JSON, to follow; layers are measured for its report.",
    )


@dataclass(frozen=True, kw_only=True)
class BurstOptions(StagedOptions):
    """Options of bursts."""

    strategy: burst.BurstStrategy = option(
        "deeppool",
        "BurstStrategy | str",
        lambda name, value: burst.resolve(value),
        "planner of the bursts.",
        agreed=True,
    )
    plan: BurstPlan | None = option(
        None,
        "BurstPlan | str | os.PathLike[str] | None",
        _check_plan(BurstPlan),
        "a plan or the path of its JSON, to follow without measuring.",
    )


@dataclass(frozen=True, kw_only=True)
class OneRankOptions(StagedOptions):
    """Options of steps on one rank."""

    strategy: one_rank.OneRankStrategy = option(
        "one-rank",
        "OneRankStrategy | str",
        lambda name, value: one_rank.REGISTRY.resolve(value),
        "choice of the rank.",
        agreed=True,
    )
    plan: OneRankPlan | None = option(
        None,
        "OneRankPlan | str | os.PathLike[str] | None",
        _check_plan(OneRankPlan),
        "a plan or the path of its JSON, to follow without measuring.",
    )
