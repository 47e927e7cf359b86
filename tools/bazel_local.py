#!/usr/bin/env python3
"""Shows Bazel the TensorFlow of this environment: links it to where WORKSPACE expects it."""

import importlib.util
from pathlib import Path


def main() -> None:
    """Makes or renews the link `build/bazel/tensorflow`."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("bazel_local: no TensorFlow in this environment; install it first")
    link = Path(__file__).resolve().parents[1] / "build" / "bazel" / "tensorflow"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(spec.submodule_search_locations[0])
    print(f"bazel_local: {link} -> {link.readlink()}")


if __name__ == "__main__":
    main()
