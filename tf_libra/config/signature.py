"""Signature and documentation of functions that take all options."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tf_libra.config.option_spec import Option

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The docstring entry that stands for all options in the source text.
_ENTRY = re.compile(r"\*\*options: .*?(?=\n\n)", re.DOTALL)


def with_option_signature(
    options: Iterable[Option], **defaults: Any
) -> Callable[[_Function], _Function]:
    """Makes a decorator that lists the options in place of a function's last parameter `**options`.

    The decorator completes the signature of a function with a parameter `strategy`, and the entry
    for `**options` in its docstring.

    Args:
        options: the options of all kinds of strategies.
        **defaults: default values that differ from those declared.
    """
    listed = [option for option in options if option.name != "strategy"]  # which is positional

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        kinds = inspect.Parameter
        parameters = [one for one in own.parameters.values() if one.kind is not kinds.VAR_KEYWORD]
        for option in listed:
            parameters.append(
                kinds(
                    option.keyword,
                    kinds.KEYWORD_ONLY,
                    default=defaults.get(option.name, option.default),
                    annotation=option.kind,
                )
            )
        function.__dict__["__signature__"] = own.replace(parameters=parameters)
        text = _documentation(listed, indent=8)
        function.__doc__ = _ENTRY.sub(lambda _: text, function.__doc__ or "", count=1)
        return function

    return decorate


def _documentation(options: Iterable[Option], indent: int) -> str:
    """Returns entries for the section `Args` of a docstring, in 100 columns."""
    lines = []
    for option in options:
        if option.group:
            text = f"{option.keyword}: `{option.name}` of `{option.group}`: {option.doc}"
        else:
            text = f"{option.name}: {option.doc}"
        lines.append(
            textwrap.fill(
                text,
                100,
                initial_indent=" " * indent,
                subsequent_indent=" " * (indent + 4),
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines).lstrip()
