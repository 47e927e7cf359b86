"""Two functions with one log directory."""

from pathlib import Path

from tf_libra.story.folders import documents

NAMES = ("plan", "profile")


def test_each_function_has_files_of_its_own_and_one_line_says_so(tmp_path: Path) -> None:
    first, told = documents(tmp_path, "train_step", NAMES)
    assert first == {"plan": tmp_path / "plan.json", "profile": tmp_path / "profile.json"}
    assert told == ""
    other, told = documents(tmp_path / "." / "", "discriminate, trace 2", NAMES)
    assert other["plan"] == tmp_path / "plan.discriminate_trace_2.json"
    assert set(other.values()).isdisjoint(first.values())
    assert "plan.json of train_step; that of discriminate, trace 2 is" in told
    assert documents(tmp_path, "train_step", NAMES) == (first, "")
    assert documents(tmp_path / "another", "discriminate", NAMES)[1] == ""
