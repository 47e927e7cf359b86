"""Routes: signatures, and arguments from HTTP texts."""

import inspect

import pytest

from tf_libra.reporting.tensorboard.routes import ROUTES, parse_arguments


@pytest.mark.parametrize("name", ROUTES)
def test_route_arguments_are_texts_and_integers(name: str) -> None:
    source, *others = inspect.signature(ROUTES[name].answer).parameters.values()
    assert source.name == "source"
    assert {other.annotation for other in others} <= {str, int, str | None, int | None}
    assert [other.name for other in others[:2]] == ([] if ROUTES[name].choices is None else [
        "run", "tag",
    ])  # fmt: skip


def test_arguments_have_the_types_of_the_answer() -> None:
    given = {"run": ["a"], "tag": ["1"], "show": ["wfbp"], "threads": ["2"], "more": ["x"]}
    arguments = {"run": "a", "tag": "1", "show": "wfbp", "threads": 2}
    assert parse_arguments(ROUTES["timeline"].answer, given) == arguments
    del given["threads"], arguments["threads"]
    assert parse_arguments(ROUTES["timeline"].answer, given) == arguments
    with pytest.raises(ValueError, match=r"threads.*'1_0'"):
        parse_arguments(ROUTES["timeline"].answer, given | {"threads": ["1_0"]})
    with pytest.raises(ValueError, match=r"threads.*0"):
        parse_arguments(ROUTES["timeline"].answer, given | {"threads": []})
