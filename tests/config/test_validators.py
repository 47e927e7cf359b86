"""Values of options whose meaning is not clear by name alone: environment, files, folders."""

import os
from pathlib import Path
from typing import Any

import pytest

from tf_libra.config import validators
from tf_libra.specs.plan import Plan, TensorGroup

PLAN = Plan((TensorGroup(0, 1, 2),), ("w",), (8,), 2, "by hand", dtypes=("float32",))


@pytest.mark.parametrize(
    ("check", "variable", "default"),
    [
        (validators.check_timeout, validators.TIMEOUT_VARIABLE, validators.DEFAULT_TIMEOUT_SECONDS),
        (
            validators.check_liveness,
            validators.LIVENESS_VARIABLE,
            validators.DEFAULT_LIVENESS_SECONDS,
        ),
    ],
)
def test_seconds_come_from_the_argument_or_the_environment(
    check: Any, variable: str, default: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert check("seconds", None) == default
    monkeypatch.setenv(variable, "30")
    assert check("seconds", None) == 30
    assert check("seconds", 45) == 45  # what is given goes first
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(ValueError, match=f"{variable} must be a number of seconds, got 'soon'"):
        check("seconds", None)
    monkeypatch.setenv(variable, "-1")
    with pytest.raises(ValueError, match=f"{variable} must be .*-1"):
        check("seconds", None)


def test_validation_is_idempotent() -> None:
    """Options are checked again where they are combined."""
    for check, given in (
        (validators.check_engine, "lanes"),
        (validators.check_folder, "a/b"),
        (validators.check_plan, PLAN),
        (validators.check_local_variables, ["*/statistics"]),
        (validators.one_of("off", "raise"), "raise"),
        (validators.one_of("off", "raise"), None),
        (validators.check_broadcast_variables, True),
        (validators.check_broadcast_variables, "first_use"),
    ):
        found = check("given", given)
        assert check("given", found) == found


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json())
    for given in (PLAN, path, str(path)):
        assert validators.load_plan(given) == PLAN


def test_file_without_a_plan_is_named(tmp_path: Path) -> None:
    text, binary, pipe = (tmp_path / name for name in ("text", "binary", "pipe"))
    text.write_text("{}")
    binary.write_bytes(b"\xff\xfe")
    os.mkfifo(pipe)  # would be waited for
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**24 + 1)
    for given, message in (
        (text, "plan: .*text: "),
        (binary, "is not a text file"),
        (pipe, "pipe: not a file"),
        (tmp_path, "not a file"),
        (large, "has 16777217 bytes; at most 16777216 are read"),
        (tmp_path / "absent", "cannot read .*absent: No such file"),
        ("a\0b", "plan must be a path"),
        (3, "plan must be a path, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            validators.load_plan(given)


def test_shares_and_groups() -> None:
    assert validators.check_share("share", 1) == 1.0
    with pytest.raises(ValueError, match=r"share.*1,.*1\.5"):
        validators.check_share("share", 1.5)
    kind = type("Faults", (), {})
    given = kind()
    check = validators.group(kind)
    assert check("faults", given) is given
    assert isinstance(check("faults", None), kind)
    with pytest.raises(ValueError, match=r"faults.*tf_libra\.Faults,.*3"):
        check("faults", 3)
