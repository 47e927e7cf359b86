"""Names, and who is known by them."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pytest

from tf_libra.internal.registry import ClassRegistry, Registry


@dataclass(frozen=True)
class First:
    name: ClassVar[str] = "first"
    size: int = 1


@dataclass(frozen=True)
class Second:
    name: ClassVar[str] = "second"


@pytest.fixture
def registry() -> ClassRegistry[object]:
    made: ClassRegistry[object] = ClassRegistry("the tests", "kind")
    for kind in (First, Second):
        assert made.register(kind) is kind
    return made


def test_members_with_a_known_name_are_rejected_unless_identical() -> None:
    members: Registry[object] = Registry("card")
    plan, other = object(), object()
    members.add("plan", plan)
    members.add("plan", plan)
    assert dict(members) == {"plan": plan}
    with pytest.raises(ValueError, match=r"card:.*'plan'"):
        members.add("plan", other)
    with pytest.raises(ValueError, match=r"card.*'burst'"):
        members.forget("burst")


def test_optional_members_are_loaded_before_a_lookup() -> None:
    members: Registry[int] = Registry("card", lambda: members.add("late", 1))
    assert members["late"] == 1 and list(members) == ["late"] and len(members) == 1


def test_names_lead_to_objects_and_objects_to_themselves(registry: ClassRegistry[object]) -> None:
    assert list(registry.by_name) == ["first", "second"]
    assert registry.resolve("first") == First(1)
    mine = First(2)
    assert registry.resolve(mine) is mine
    assert registry.find("first") == First(1)
    assert registry.find(mine) is mine


def test_find_returns_none_for_another_name_or_object(registry: ClassRegistry[object]) -> None:
    for other in ("third", None, First, 3):
        assert registry.find(other) is None


def test_the_same_may_be_registered_again(registry: ClassRegistry[object]) -> None:
    registry.register(First)
    assert list(registry.by_name) == ["first", "second"]


def test_removed_entry_is_unknown(registry: ClassRegistry[object]) -> None:
    registry.forget("first")
    assert list(registry.by_name) == ["second"]
    for use in (registry.resolve, registry.forget):
        with pytest.raises(ValueError, match=r"kind.*'first'"):
            use("first")
    with pytest.raises(ValueError, match="First"):
        registry.resolve(First())


def test_entry_without_a_valid_name_is_rejected(registry: ClassRegistry[object]) -> None:
    @dataclass(frozen=True)
    class Nameless:
        name: ClassVar[str] = ""

    @dataclass
    class Changeable:
        name: ClassVar[str] = "changeable"

    @dataclass(frozen=True)
    class Demanding:
        size: int
        name: ClassVar[str] = "demanding"

    @dataclass(frozen=True)
    class Taken:
        name: ClassVar[str] = "first"

    wrong = {
        Nameless: "name must be a text that is not empty",
        Changeable: "kind 'changeable' must be a frozen dataclass",
        Demanding: "kind 'demanding' must have a default for every argument",
        Taken: "name must be new, got 'first'",
    }
    for kind, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            registry.register(kind)
    assert list(registry.by_name) == ["first", "second"]


class Sized(Protocol):
    name: ClassVar[str]
    unit: ClassVar[str]

    @property
    def sizes(self) -> list[int]: ...

    def grow(self) -> None: ...


class Shrinking(Sized, Protocol):
    def shrink(self) -> None: ...


def test_missing_members_of_the_protocol_are_named() -> None:
    made: ClassRegistry[Sized] = ClassRegistry("the tests", "kind", Shrinking)

    @dataclass(frozen=True)
    class Half:
        name: ClassVar[str] = "half"
        sizes: list[int] = field(default_factory=list)

        def shrink(self) -> None: ...

    reported = r"kind 'half' must have unit, grow: .*\.Shrinking documents them"
    with pytest.raises(ValueError, match=reported):
        made.register(Half)

    @made.register
    @dataclass(frozen=True)
    class Whole(Half):
        name: ClassVar[str] = "whole"
        unit: ClassVar[str] = "m"

        def grow(self) -> None: ...

    assert list(made.by_name) == ["whole"]


def test_package_of_a_missing_entry_is_named() -> None:
    @dataclass(frozen=True)
    class InMetres:
        unit: ClassVar[str] = "m"

        def grow(self) -> None: ...

    @dataclass(frozen=True)
    class Of:
        sizes: list[int] = field(default_factory=list)

    made: ClassRegistry[Sized] = ClassRegistry("the tests", "kind", Sized, bases=(InMetres, Of))

    @dataclass(frozen=True)
    class Bare:
        name: ClassVar[str] = "bare"

    @dataclass(frozen=True)
    class Growing(Of):
        name: ClassVar[str] = "growing"

        def grow(self) -> None: ...

    @dataclass(frozen=True)
    class Still(Of):
        name: ClassVar[str] = "still"
        unit: ClassVar[str] = "s"

    reported = r"; inherit \S+\.InMetres or \S+\.Of for defaults$"
    with pytest.raises(ValueError, match=reported):
        made.register(Bare)
    for class_ in (Growing, Still):
        with pytest.raises(ValueError, match=r"; inherit \S+\.InMetres for defaults$"):
            made.register(class_)
    nobody: ClassRegistry[Sized] = ClassRegistry("the tests", "kind", Sized, bases=(Of,))
    with pytest.raises(ValueError, match=r"documents them$"):
        nobody.register(Growing)
