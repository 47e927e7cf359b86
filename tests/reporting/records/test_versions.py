import platform
from importlib import metadata

import pytest

from tf_libra.reporting.records import versions


def test_every_package_is_named_once() -> None:
    found = versions.versions()
    assert f"Python {platform.python_version()}" in found
    assert f"Horovod {metadata.version('horovod')}" in found
    assert len({one.split()[0] for one in found}) == len(found)
    assert any(one.startswith("TensorFlow 2.") for one in found)


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (("no-such-package", "Nothing"), ("numpy", "Numbers"), ("pytest", "Numbers"))
    monkeypatch.setattr(versions, "_PACKAGES", packages)
    assert versions.versions()[1:] == (f"Numbers {metadata.version('numpy')}",)
