"""`tf-libra`: plan and simulate without training, start workers, look at runs."""

from tf_libra.cli.main import main

__all__ = ["main"]
