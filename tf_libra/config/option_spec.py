"""Declaration of options, from which functions get their signature and documentation."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Check = Callable[[str, Any], Any]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The docstring entry that stands for all options in the source text.
_ENTRY = re.compile(r"\*\*options: .*?(?=\n\n)", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """One option that a user may pass.

    Attributes:
        name: field of its dataclass.
        default: value if the user gives none.
        kind: accepted types, as an annotation.
        doc: description for docstrings and docs/options.md.
        check: returns the meaning of a given value; raises `ValueError` with the given name.
        agreed: True if all ranks must give the same value.
        group: argument of `optimize` that holds it, such as "tuning"; empty for the options that
            are themselves arguments of `optimize`.
    """

    name: str
    default: Any
    kind: str
    doc: str
    check: Check
    agreed: bool
    group: str = ""

    @property
    def path(self) -> str:
        """Name with its group, such as "tuning.max_seconds"."""
        return f"{self.group}.{self.name}" if self.group else self.name


def option(default: Any, kind: str, check: Check, doc: str, *, agreed: bool = False) -> Any:
    """Returns a field of an options dataclass; see `Option`."""
    doc = " ".join(doc.split())
    metadata = {"kind": kind, "check": check, "doc": doc, "agreed": agreed}
    return dataclasses.field(default=default, metadata=metadata)


def check_all(value: Any) -> None:
    """Replaces every field of an options dataclass by its checked value."""
    for field in dataclasses.fields(value):
        meaning = field.metadata["check"](field.name, getattr(value, field.name))
        object.__setattr__(value, field.name, meaning)


def with_option_signature(
    options: Iterable[Option], **defaults: Any
) -> Callable[[_Function], _Function]:
    """Makes a decorator that lists the options in place of a function's last parameter `**options`.

    The decorator completes the signature of a function with a parameter `strategy`, and the entry
    for `**options` in its docstring.

    Args:
        options: the options of all kinds of strategies. Options in groups are left out.
        **defaults: default values that differ from those declared.
    """
    # The strategy is positional, and the function's own docstring describes it.
    listed = [option for option in options if option.name != "strategy" and not option.group]

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        kinds = inspect.Parameter
        parameters = [
            parameter
            for parameter in own.parameters.values()
            if parameter.kind is not kinds.VAR_KEYWORD
        ]
        for option in listed:
            parameters.append(
                kinds(
                    option.name,
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
    lines = [
        textwrap.fill(
            f"{option.name}: {option.doc}",
            100,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for option in options
    ]
    return "\n".join(lines).lstrip()
