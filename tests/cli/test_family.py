import pytest

from tf_libra.cli.command import Command
from tf_libra.cli.family import run_family


def test_the_first_argument_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(values, rest):
        raise ValueError("not today")

    commands = {
        "one": Command("the first", lambda values: None, lambda values, rest: print(*rest), ("A",)),
        "two": Command("the second", lambda values: None, fails),
    }
    assert run_family("prog", commands, ["one", "a"]) == 0
    assert capsys.readouterr().out == "a\n"
    assert run_family("prog", commands, ["two"]) == 2
    assert capsys.readouterr().err == "prog two: not today\n"


@pytest.mark.parametrize(
    ("arguments", "status", "first"),
    [
        (["--help"], 0, "usage: prog COMMAND [flags]"),
        ([], 2, "usage: prog COMMAND [flags]"),
        (["three"], 2, "prog: no command 'three'"),
    ],
)
def test_every_command_is_listed(
    arguments: list[str], status: int, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {"one": Command("the first", lambda values: None, lambda values, rest: None)}
    assert run_family("prog", commands, arguments) == status
    told = capsys.readouterr()
    shown, other = (told.err, told.out) if status else (told.out, told.err)
    assert shown.splitlines()[0] == first
    assert "  one  the first" in shown
    assert other == ""
