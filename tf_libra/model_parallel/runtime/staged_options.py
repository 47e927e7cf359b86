"""Options of pipelines and of bursts."""

from dataclasses import dataclass
from typing import Any

from tf_libra.config import Faults, Options, validators
from tf_libra.config.option_spec import option
from tf_libra.internal import validation
from tf_libra.model_parallel.planning import burst, pipeline
from tf_libra.specs.burst import BurstPlan


def _check_engine(name: str, value: Any) -> str:
    if value not in ("auto", "lanes"):
        raise ValueError(f"{name} must be 'lanes' for pipelines and bursts, got {value!r}")
    return "lanes"


def _check_faults(name: str, value: Any) -> Faults:
    faults: Faults = validators.group(Faults)(name, value)
    if faults.check_numerics is not None:
        raise ValueError(
            f"check_numerics must be None for pipelines and bursts, got {faults.check_numerics!r}"
        )
    return faults


def _check_plan(name: str, value: Any) -> BurstPlan | None:
    return None if value is None else validators.load_document(value, BurstPlan)


@dataclass(frozen=True, kw_only=True)
class StagedOptions(Options):
    """Options that pipelines and bursts share."""

    engine: str = option(
        "auto",
        "str",
        _check_engine,
        """what moves tensors between ranks: "lanes", or "auto", which is the same.""",
        agreed=True,
    )
    faults: Faults = option(
        None,
        "Faults | None",
        _check_faults,
        "a `tf_libra.Faults`: ranks that are late.",
    )


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(StagedOptions):
    """Options of pipelines."""

    strategy: pipeline.PipelineStrategy = option(
        "spp",
        "PipelineStrategy | str",
        lambda name, value: pipeline.resolve(value),
        "what plans the pipeline.",
        agreed=True,
    )
    release_variables: bool = option(
        False,
        "bool",
        validation.boolean,
        """of pipelines alone: free the memory of variables that are of other ranks' stages alone,
        until `synchronize_variables()`.""",
        agreed=True,
    )
    memory_bytes: float | None = option(
        None,
        "float | None",
        validators.check_optional_above_0,
        """of pipelines alone: what this rank has for the parameters of its stage and their
        gradients; the least of all ranks counts. None: enough.""",
    )


@dataclass(frozen=True, kw_only=True)
class BurstOptions(StagedOptions):
    """Options of bursts."""

    strategy: burst.BurstStrategy = option(
        "deeppool",
        "BurstStrategy | str",
        lambda name, value: burst.resolve(value),
        "what plans the bursts.",
        agreed=True,
    )
    plan: BurstPlan | None = option(
        None,
        "BurstPlan | str | os.PathLike[str] | None",
        _check_plan,
        "a plan or the path of one as JSON, to follow without measuring.",
    )
