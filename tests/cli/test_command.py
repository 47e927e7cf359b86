"""Command runner: flags, help, files, errors, exit status."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from tf_libra.cli import command
from tf_libra.cli.command import Command, run_command, run_family


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("count", 3, "how many", lower_bound=1, flag_values=values)
    flags.DEFINE_string("file", None, "a document", flag_values=values)
    command.define_plot(values)


def called(
    *arguments: str,
    run: Callable[..., Any] = lambda values, rest: None,
    operands: tuple[str, ...] = (),
) -> int:
    return run_command("prog do", Command("does something", define, run, operands), arguments)


def test_flags_and_positionals_reach_the_command() -> None:
    seen: list[Any] = []

    def run(values: flags.FlagValues, rest: list[str]) -> None:
        seen.append((command.flag_value(values, "count"), rest))

    assert called("folder", "--count=5", run=run, operands=("FOLDER",)) == 0
    assert called(run=run) == 0
    assert seen == [(5, ["folder"]), (3, [])]


def test_help_lists_the_flags_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--help", operands=("FOLDER",)) == 0
    reported = capsys.readouterr().out
    assert reported.startswith("usage: prog do FOLDER [flags]\n\ndoes something\n")
    assert "--count" in reported and "how many" in reported
    assert ".py" not in reported


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--count=0"], "flag --count=0"),
        (["--number=1"], "Unknown command line flag 'number'"),
        (["more"], "only flags are allowed, got more"),
        (["--plot=a.txt"], "plot must end in .svg or .png, got 'a.txt'"),
    ],
)
def test_bad_command_line_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*arguments) == command.BAD
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("prog do: ") and said in first


def test_missing_positionals_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(operands=("FOLDER", "OUT")) == command.BAD
    assert "arguments must be FOLDER OUT, got 0 arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("n must be 1"), 2, "n must be 1"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.json"), 2, "'a.json': No such file"),
        (OSError(errno.ENOSPC, "No space left", "a.json"), 1, "'a.json': No space left"),
        (ImportError("matplotlib is missing"), 1, "matplotlib is missing"),
    ],
)
def test_exit_status_depends_on_the_error(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(values: flags.FlagValues, rest: list[str]) -> None:
        raise error

    assert called(run=run) == status
    assert capsys.readouterr().err == f"prog do: {said}\n"


def test_closed_stdout_is_not_an_error() -> None:
    """`prog do | head` is not a failure."""

    def run(values: flags.FlagValues, rest: list[str]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        called(run=run)


def values_of(**given: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define(values)
    values(["prog", *(f"--{name}={value}" for name, value in given.items())])
    return values


def test_documents_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[1]")
    for named in (tmp_path, tmp_path / "plan.json"):
        assert command.read_flag(values_of(file=str(named)), "file", json.loads, "plan.json") == [1]
    with pytest.raises(ValueError, match=r"file.*FILE\.json"):
        command.read_flag(values_of(), "file", json.loads)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json: Expecting"):
        command.read(tmp_path / "plan.json", json.loads)
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="is not a text file"):
        command.read(tmp_path / "plan.json", json.loads)


def test_texts_go_to_a_file_or_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write(str(tmp_path / "out"), "text")
    command.write(None, "shown")
    assert (tmp_path / "out").read_text() == "text"
    assert capsys.readouterr().out == "shown"


def test_lists_of_numbers() -> None:
    assert command.integers("workers", ["2", "8"]) == [2, 8]
    assert command.integers("workers", None) == []
    for items, message in ((["2", "x"], "separated by commas"), (["0"], "must be from 1")):
        with pytest.raises(ValueError, match=f"workers must be .*{message.split()[-1]}"):
            command.integers("workers", items)


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
    reported = capsys.readouterr()
    shown, other = (reported.err, reported.out) if status else (reported.out, reported.err)
    assert shown.splitlines()[0] == first
    assert "  one  the first" in shown
    assert other == ""
