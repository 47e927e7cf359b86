"""The names that users import from the package itself."""

from importlib import metadata

import tf_libra


def test_version_is_the_installed_distributions() -> None:
    assert tf_libra.__version__ == metadata.version("tf-libra")
    assert "__version__" in dir(tf_libra)
