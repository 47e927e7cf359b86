"""Strategies as they are passed to benchmarks: by name, with arguments that are not defaults.

"aiacc:streams=1:threads=1/2" is `Aiacc(streams=(1,), threads=(1, 2))`, and
"spp:num_microbatches=4" is `Spp(num_microbatches=4)`. "libra:wire_dtype=bfloat16" is `Libra()` with
that option of `optimize`, "libra:wire_dtype=bfloat16:error_feedback=1" with both, and
"libra:shard_updates=1" with that option, or "libra:shard_updates=overlap" or "=auto". Ranks of
"libra:zero_blocks=send" leave no blocks of zeros out of what they send.
"""

import dataclasses
from typing import Any

from tf_libra.config import validators
from tf_libra.runtime.strategy_kinds import KINDS, resolve_strategy

# Names of all strategies of tf_libra, those of data parallelism first.
NAMES = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.strategies.by_name))
_WIRE = "wire_dtype"
_FLAGS = ("error_feedback", "shard_updates")
_FLAG_VALUES = {"0": False, "1": True, "overlap": "overlap", "auto": "auto"}
_ZEROS = "zero_blocks"


def is_ours(text: str) -> bool:
    """Returns whether it names a strategy of tf_libra."""
    return text.partition(":")[0] in NAMES


def has_stages(text: str) -> bool:
    """Returns whether it names a strategy of pipelines or bursts."""
    return is_ours(text) and _is_staged(text.partition(":")[0])


def _is_staged(name: str) -> bool:
    kind, strategy = resolve_strategy(name)
    return kind.is_staged or bool(getattr(strategy, "families", ()))


def options_of(text: str) -> dict[str, Any]:
    """Options of `optimize` other than the strategy."""
    parts = {key: value for key, _, value in (part.partition("=") for part in text.split(":")[1:])}
    options: dict[str, Any] = {_WIRE: parts[_WIRE]} if _WIRE in parts else {}
    return options | {flag: _FLAG_VALUES[parts[flag]] for flag in _FLAGS if flag in parts}


def trains_own_model(text: str) -> bool:
    """Returns whether its step leaves variables that the steps of other strategies cannot read."""
    if has_stages(text) or not is_ours(text):
        return has_stages(text)
    return bool(options_of(text).get("shard_updates")) or strategy_of(text).gathers_weights


def sends_zeros(text: str) -> bool:
    """Returns whether blocks of zeros travel, too."""
    return f"{_ZEROS}=send" in text.split(":")[1:]


def strategy_of(text: str) -> Any:
    """The strategy of a name and whole numbers for its arguments, several with slashes between.

    Raises:
        ValueError: there is no such strategy, it has no such argument, or not of that value.
    """
    name, *parts = text.split(":")
    kind = type(resolve_strategy(name)[1])
    fields = {field.name: field for field in dataclasses.fields(kind)}
    arguments = {}
    for variant in parts:
        key, _, value = variant.partition("=")
        if key == _WIRE and not _is_staged(name):
            validators.check_wire_dtype(_WIRE, value)
            continue
        if key in _FLAGS and not _is_staged(name):
            allowed = tuple(_FLAG_VALUES) if key == "shard_updates" else ("0", "1")
            if value not in allowed:
                raise ValueError(f"{text}: {key} must be {' or '.join(allowed)}, got {value!r}")
            continue
        if key == _ZEROS and not _is_staged(name):
            if value not in ("omit", "send"):
                raise ValueError(f"{text}: {key} must be omit or send, got {value!r}")
            continue
        if key not in fields:
            known = ", ".join(fields)
            raise ValueError(f"{text}: {name} has the arguments {known}; got {key!r}")
        try:
            numbers = tuple(int(number) for number in value.split("/"))
        except ValueError:
            raise ValueError(f"{text}: {key} must be whole numbers, got {value!r}") from None
        takes_several = isinstance(fields[key].default, tuple)
        if not takes_several and len(numbers) > 1:
            raise ValueError(f"{text}: {key} must be one number, got {value!r}")
        arguments[key] = numbers if takes_several else numbers[0]
    return kind(**arguments)
