"""Numbers for a reader; reporting/tensorboard/test_tab.py compares them with the browser's."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.internal import formatting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (5.199e-8, "0.052 us"),
        (1e-10, "0 us"),
        (9.9996e-4, "1 ms"),
        (9.994e-4, "999.4 us"),
        (0.0123449, "12.34 ms"),
        (0.03, "30 ms"),
        (1.23456, "1.235 s"),
        (123456.0, "123500 s"),
        (-0.0015, "-1.5 ms"),
        (1.23456e20, "123500000000000000000 s"),
        (1.23456e21, "1.235e+21 s"),
        (1e308, "1e+308 s"),
        (None, "-"),
    ],
)
def test_times(seconds: float | None, text: str) -> None:
    assert formatting.time(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_002_000, "4.002 MB"), (25e8, "2.5 GB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert formatting.size(num_bytes) == text
    assert formatting.rate(num_bytes) == f"{text}/s"


@pytest.mark.parametrize(("number", "text"), [(1, "1 group"), (2, "2 groups")])
def test_numbers_have_their_noun(number: int, text: str) -> None:
    assert formatting.count(number, "group") == text


def test_changes_have_signs() -> None:
    assert formatting.change(0.0204) == "+2.0 %"
    assert formatting.change(-0.3) == "-30.0 %"
    assert formatting.change(-0.0001) == "0.0 %"
    assert formatting.difference(-1.5e-3) == "-1.5 ms"
    assert formatting.difference(1e-12) == "no change"
    assert formatting.difference(None) == "not possible"


def test_limits_that_allow_almost_any_ratio_are_undetermined() -> None:
    assert formatting.limits(0.318, 2.703) == "-68.2 % to +170.3 %"
    assert formatting.limits(0.1, 10.0) == "-90.0 % to +900.0 %"
    assert formatting.limits(0.09, 10.0) == formatting.UNDETERMINED
    assert formatting.limits(0.0, 1e300) == formatting.UNDETERMINED


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_written(number: float) -> None:
    for write in (
        formatting.time,
        formatting.size,
        formatting.rate,
        formatting.percent,
        formatting.change,
    ):
        assert write(number)


@given(st.floats(1e-9, 1e6))
def test_a_time_is_read_back_to_its_digits(seconds: float) -> None:
    number, unit = formatting.time(seconds).split()
    factor = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    # Half of the fourth digit, or of the third decimal and, below 1 us, of the fourth digit, too.
    assert float(number) * factor == pytest.approx(seconds, rel=5.1e-4, abs=0.56e-3 * factor)
    assert float(number) < 1000 or unit == "s"


_UNIT = r"(?:us|ms|s|seconds|B|kB|MB|GB|bytes)\b"
# A number with digits of its own before a unit, or as a share; exact counts are none.
_OWN_IN_PYTHON = re.compile(rf"\{{[^{{}}]*:[^{{}}]*[gfe]\}} ?{_UNIT}|\{{[^{{}}]*:[^{{}}]*%\}}")
# The same in a browser, and numbers that a chart formats by itself on hover.
_OWN_IN_BROWSER = re.compile(
    rf"toFixed\([^)]*\)\}} ?{_UNIT}|toPrecision\([^)]*\)\}} ?{_UNIT}|(?<!× )%\{{[yz](?::[^}}]*)?\}}"
)


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        ('f"{1e3 * seconds:.4g} ms"', True),
        ('f"({a:.3g} s against"', True),
        ('f"{size:.3g} bytes"', True),
        ('f"{share:.1%} of them"', True),
        ('f"{formatting.time(seconds)} each"', False),
        ('f"{largest:,} bytes"', False),
        ('f"{ratio:.2f} times as long"', False),
    ],
)
def test_formats_of_its_own_are_seen(line: str, is_own: bool) -> None:
    assert bool(_OWN_IN_PYTHON.search(line)) == is_own


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        ("`step %{x}<br>%{y:.4g} ms<extra>`", True),
        ("`${(1e3 * seconds).toFixed(2)} ms`", True),
        ("`%{x} workers: %{text} (× %{y:.3f})`", False),
        ("`${ratio.toFixed(2)} times as fast`", False),
    ],
)
def test_formats_of_its_own_are_seen_in_the_browser(line: str, is_own: bool) -> None:
    assert bool(_OWN_IN_BROWSER.search(line)) == is_own


def test_times_bytes_and_shares_are_written_in_one_place() -> None:
    package = Path(formatting.__file__).parents[1]
    found = [
        f"{path.relative_to(package)}:{number}: {line.strip()}"
        for pattern, suffix, own in (
            (_OWN_IN_PYTHON, "py", "formatting.py"),
            (_OWN_IN_BROWSER, "js", "format.js"),
        )
        for path in sorted(package.rglob(f"*.{suffix}"))
        if path.name != own
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []
