"""The docs' table from equations to code: every name in it exists."""

import importlib
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs" / "planning.md"
HOMES = ("tf_libra", "tf_libra.cost_model", "tf_libra.simulation", "")


def resolves(name):
    for home in HOMES:
        full = f"{home}.{name}".strip(".").split(".")
        for split in range(len(full), 0, -1):
            try:
                found = importlib.import_module(".".join(full[:split]))
            except ImportError:
                continue
            try:
                for attribute in full[split:]:
                    # Annotations of a dataclass without a default are no attributes.
                    found = getattr(found, attribute, None) or found.__dataclass_fields__[attribute]
            except (AttributeError, KeyError):
                break
            return True
    return False


def test_every_name_in_the_table_exists():
    rows = re.findall(r"^\| (?:LIBRA|ASC-WFBP|beyond).*\|(.*)\|$", DOCS.read_text(), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 15
    assert [name for name in names if not resolves(name)] == []
    assert not resolves("planning.data_parallel.libra.nothing")
