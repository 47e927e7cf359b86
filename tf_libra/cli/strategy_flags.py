"""Command-line flags for the arguments of strategies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from absl import flags

from tf_libra.cli.command import flag_value
from tf_libra.planning.arguments import Argument, arguments_of

# The absl module that distinguishes strategy flags from a command's own flags.
_MODULE = "tf_libra.strategies"

_Strategy = TypeVar("_Strategy")


@dataclass(frozen=True)
class _Kind:
    """Kind of a flag value.

    Attributes:
      parser: parser of one value.
      single: description of one value, for errors.
      several: description of several values, for errors.
    """

    parser: flags.ArgumentParser
    single: str
    several: str


_KINDS = {
    bool: _Kind(flags.BooleanParser(), "true or false", "true or false"),
    int: _Kind(flags.IntegerParser(), "an integer", "integers"),
    float: _Kind(flags.FloatParser(), "a number", "numbers"),
    str: _Kind(flags.ArgumentParser(), "a text", "texts"),
}


def define_strategy(
    values: flags.FlagValues, by_name: Mapping[str, type[Any]], default: str | None
) -> None:
    """Defines the flag that names a strategy."""
    flags.DEFINE_string("strategy", default, f"one of {', '.join(by_name)}", flag_values=values)


def define_arguments(
    values: flags.FlagValues, by_name: Mapping[str, type[Any]], without: Collection[str] = ()
) -> None:
    """Defines a flag for every argument of the strategies, after the command's own flags.

    The flags have no defaults, as a given flag must be an argument of the named strategy.

    Args:
      values: flags of the command.
      by_name: the strategies.
      without: arguments that the command provides itself.

    Raises:
      ValueError: an argument outside of `without` has the name of one of the command's own flags.
    """
    found: dict[str, dict[str, Argument]] = {}
    for strategy, its_class in by_name.items():
        for argument in _planning_arguments(its_class):
            if argument.kind is None or argument.name in without:
                continue
            if argument.name in values:
                raise ValueError(
                    f"{argument.name} of strategy {strategy!r} must have another name than the"
                    f" command's own flags, got {argument.name!r}"
                )
            found.setdefault(argument.name, {})[strategy] = argument
    for name, of_strategies in found.items():
        kinds = {(option.kind, option.several) for option in of_strategies.values()}
        # If strategies differ in the kind, the value stays text until the strategy is known.
        kind, several = kinds.pop() if len(kinds) == 1 else (str, False)
        assert kind is not None
        registration: dict[str, Any] = {"flag_values": values, "module_name": _MODULE}
        if several:
            flags.DEFINE_list(name, None, _help(of_strategies), **registration)
        elif kind is bool:
            flags.DEFINE_bool(name, None, _help(of_strategies), **registration)
        else:
            flags.DEFINE(_KINDS[kind].parser, name, None, _help(of_strategies), **registration)


def named_strategy(values: flags.FlagValues, by_name: Mapping[str, type[_Strategy]]) -> _Strategy:
    """Returns the named strategy with the given arguments.

    Raises:
      ValueError: no such strategy or argument, or an argument is out of its range.
    """
    name = flag_value(values, "strategy")
    if name not in by_name:
        raise ValueError(f"strategy must be one of {', '.join(by_name)}, got {name!r}")
    known = [planning_argument.name for planning_argument in _planning_arguments(by_name[name])]
    for argument in _passed(values):
        if argument not in known:
            raise ValueError(
                f"{argument} is not an argument of {name}, which takes {', '.join(known)}"
            )
    return by_name[name](**passed_arguments(values, by_name[name]))


def is_plan_passed(values: flags.FlagValues) -> bool:
    """Returns True for a plan from a file, False for a strategy.

    Raises:
      ValueError: both or neither are given, or a plan with arguments of strategies.
    """
    if (flag_value(values, "plan") is None) == (flag_value(values, "strategy") is None):
        raise ValueError("exactly one of plan and strategy must be given")
    if flag_value(values, "plan") is None:
        return False
    for name, value in _passed(values).items():
        raise ValueError(
            f"{name} is an argument of strategies and has no effect on a plan, got {value!r}"
        )
    return True


def passed_arguments(values: flags.FlagValues, kind: type[Any]) -> dict[str, Any]:
    """Returns the given arguments of a strategy, converted to their types."""
    found = _passed(values)
    return {
        planning_argument.name: _read(planning_argument, found[planning_argument.name])
        for planning_argument in _planning_arguments(kind)
        if planning_argument.name in found
    }


def _planning_arguments(kind: type[Any]) -> list[Argument]:
    """Returns a strategy's arguments that affect planning."""
    return [argument for argument in arguments_of(kind) if not argument.in_training]


def _passed(values: flags.FlagValues) -> dict[str, Any]:
    found = values.get_flags_for_module(_MODULE)
    return {flag.name: flag.value for flag in found if flag.value is not None}


def _read(argument: Argument, value: Any) -> Any:
    if argument.kind is None:
        raise ValueError(f"{argument.name} cannot be set by a flag, got {value!r}")
    kind = _KINDS[argument.kind]
    try:
        if not argument.several:
            return kind.parser.parse(value)
        items = value.split(",") if isinstance(value, str) else value
        return tuple(kind.parser.parse(item) for item in items)
    except (TypeError, ValueError):
        wanted = f"{kind.several} separated by commas" if argument.several else kind.single
        raise ValueError(f"{argument.name} must be {wanted}, got {value!r}") from None


def _help(of_strategies: Mapping[str, Argument]) -> str:
    """Returns the help text: a line for each description and default, with its strategies."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, argument in of_strategies.items():
        value = argument.default
        text = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
        default = "" if value is None else f"; by default {text}"
        lines.setdefault((argument.doc.removesuffix("."), default), []).append(name)
    return "\n".join(
        f"{doc} ({', '.join(names)}){default}".lstrip() for (doc, default), names in lines.items()
    )
