"""Registry of the kinds of strategies, such as data parallelism and pipelines.

A kind has its own strategies, options and training steps. Systems register theirs.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from tf_libra.config import (
    DataParallelOptions,
    OptimizeKwargs,
    Option,
    Options,
    declared,
    plan_format,
    resolve_as,
)
from tf_libra.internal.codec import Document
from tf_libra.internal.registry import ClassRegistry, Registry, load_systems
from tf_libra.planning import data_parallel
from tf_libra.planning.allowed_differences import JOINT_RESULTS
from tf_libra.runtime.protocol import TrainingStep
from tf_libra.specs.layer_graph import LayerGraph


class AnyStrategy(Protocol):
    """Strategy of any kind, a frozen dataclass of its arguments."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class Links:
    """Links between the ranks of a job, as all-reduces have measured them.

    Attributes:
        num_ranks: number of ranks.
        bytes_per_second: rate at which a rank sends.
        startup_seconds: startup of an all-reduce.
        latency_seconds: latency of a message.
    """

    num_ranks: int
    bytes_per_second: float
    startup_seconds: float
    latency_seconds: float

    def transfer_seconds(self, num_bytes: float, num_computing: int) -> float:
        """Returns seconds in which ranks that compute a layer receive examples, or send results.

        Each of all ranks has an equal part, which does not travel if the rank computes itself.

        Args:
            num_bytes: bytes of all parts.
            num_computing: number of ranks that compute the layer.
        """
        if num_computing >= self.num_ranks or num_bytes == 0:
            return 0.0
        travelling = (1 - num_computing / self.num_ranks) * num_bytes
        return self.latency_seconds + travelling / (num_computing * self.bytes_per_second)


class Prediction(NamedTuple):
    """Predicted step of a strategy.

    Attributes:
        seconds: seconds of the step.
        arguments: arguments that the strategy leaves open, with the values for this step.
    """

    seconds: float
    arguments: Mapping[str, Any] = {}


@dataclass(frozen=True)
class StrategyKind:
    """One kind of strategy.

    Attributes:
        name: plural noun for messages, such as "pipelines".
        strategies: its strategies by name.
        options: dataclass of its options.
        make_step: makes the training step of a function from its options; None for the core's own
            `TrainingFunction`.
        is_staged: True if ranks update different variables, and every object of a decorated method
            has a step of its own.
        joins_trials: True if a strategy of data parallelism may try these strategies; their steps
            are then `CandidateStep`s.
        trains_alone: True if one rank trains the joint batch: predictions of one worker hold, and
            sparse gradients stay rows.
        max_speedup: returns the largest factor by which N workers may be faster than one.
        predict: returns the predicted step, from a strategy, the measured layers for the joint
            batch, the links, and the number of examples of that batch; raises `ValueError` if
            there is no plan. None: nothing predicts it.
        exchange_seconds: returns the seconds of transfers that the prediction of a plan leaves out,
            from the plan, these layers and the links; None: none.
        plan_type: type of plans that its option `plan` takes; None without this option.
        of_plans: its strategy that follows a plan under `auto`.
    """

    name: str
    strategies: ClassRegistry[Any]
    options: type[Options]
    make_step: Callable[[Callable[..., Any], Any], TrainingStep] | None = None
    is_staged: bool = False
    joins_trials: bool = False
    trains_alone: bool = False
    max_speedup: Callable[[int], float] = float
    predict: Callable[[Any, LayerGraph, Links, int], Prediction] | None = None
    exchange_seconds: Callable[[Any, LayerGraph, Links], float] | None = None
    plan_type: type[Document] | None = None
    of_plans: Any = None


DATA_PARALLELISM = StrategyKind("data parallelism", data_parallel.REGISTRY, DataParallelOptions)
KINDS: Registry[StrategyKind] = Registry("kind", load_systems)
KINDS.add(DATA_PARALLELISM.name, DATA_PARALLELISM)


def resolve_strategy(strategy: AnyStrategy | str) -> tuple[StrategyKind, Any]:
    """Returns a strategy, given as an object or by name, with its kind.

    Raises:
        ValueError: it is neither a registered name nor an object of a registered class.
    """
    for kind in KINDS.values():
        found = kind.strategies.find(strategy)
        if found is not None:
            return kind, found
    if not isinstance(strategy, str):
        raise ValueError(
            f"strategy must be a name or an object of tf_libra.strategies, got {strategy!r}"
        )
    names = [name for kind in KINDS.values() for name in kind.strategies.by_name]
    raise ValueError(f"strategy must be one of {', '.join(dict.fromkeys(names))}, got {strategy!r}")


def resolve_plan(plan: Any) -> tuple[StrategyKind, Any] | None:
    """Returns the kind and strategy of a plan that is not of data parallelism; None otherwise.

    Args:
        plan: a plan, or the path of its JSON, as users give it; checked later.
    """
    name = None if plan is None else plan_format(plan)
    for kind in KINDS.values():
        if kind.plan_type is not None and name == kind.plan_type.FORMAT:
            return kind, kind.of_plans
    return None


def resolve_options(kind: StrategyKind, kwargs: Mapping[str, Any]) -> Options:
    """Checks the given options, one of which is the strategy, for a kind of strategies.

    An option that only other kinds have may be given with its default value.

    Raises:
        TypeError: no kind has such an option.
        ValueError: names the option, its value and what is allowed.
    """
    own = {option.name for option in declared(kind.options) if not option.group}
    accepted = dict(kwargs)
    for option in all_options():
        if option.group or option.name in own or option.name not in accepted:
            continue
        value = accepted.pop(option.name)
        if value != option.default:
            allowed = ", ".join(sorted(own - {"strategy"}))
            raise ValueError(
                f"{option.name} is no option of {kind.name}, such as strategy"
                f" {kwargs['strategy'].name!r}, got {value!r}; allowed are {allowed}"
            )
    return resolve_as(kind.options, accepted)


def all_options() -> Iterator[Option]:
    """Yields the options of all kinds, each once, in the order of `OptimizeKwargs`."""
    found: dict[str, Option] = {}
    for kind in KINDS.values():
        for option in declared(kind.options):
            found.setdefault(option.path, option)
    order = ["strategy", *OptimizeKwargs.__annotations__]

    def position(option: Option) -> tuple[bool, int]:
        known = option.name in order
        return bool(option.group), order.index(option.name) if known else len(order)

    yield from sorted(found.values(), key=position)


def strategy_classes() -> dict[str, type[Any]]:
    """Returns the strategies of all kinds by class name; of two, the first registered."""
    found: dict[str, type[Any]] = {}
    for kind in KINDS.values():
        for strategy in kind.strategies.by_name.values():
            found.setdefault(strategy.__name__, strategy)
    return found


def has_joint_results(strategy: AnyStrategy | str) -> bool:
    """Returns True if a step may return the results and metrics of all ranks' examples."""
    kind, resolved = resolve_strategy(strategy)
    if kind.is_staged:
        return getattr(resolved, "results", "joint") == "joint"
    return JOINT_RESULTS in getattr(resolved, "allow", ())


def without_families(strategy: AnyStrategy | str) -> AnyStrategy | str:
    """Returns a strategy that compares data-parallel plans alone, if it is `auto`."""
    _, resolved = resolve_strategy(strategy)
    if isinstance(resolved, data_parallel.Auto) and resolved.families:
        return dataclasses.replace(resolved, families=())
    return strategy
