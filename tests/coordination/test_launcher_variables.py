"""Addresses in a launcher's variables."""

import pytest

from tf_libra.coordination.launcher_variables import split_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a-b.c:1", ("a-b.c", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535)), ("[::1]:2", ("::1", 2))],
)
def test_address_has_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, "X") == expected


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:0", "a:65536", "::1:2", "[::1]", "a b:1"])
def test_other_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="X must name host:port"):
        split_address(text, "X")
