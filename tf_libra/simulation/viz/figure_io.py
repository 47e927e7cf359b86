"""Output of figures as PNG or SVG. Needs Matplotlib."""

import os
from pathlib import Path
from typing import Any


def save(figure: Any, path: str | os.PathLike[str], salt: str | None = None) -> None:
    """Write a figure as PNG or SVG by the file's suffix; a salt makes an SVG reproducible.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context

    if Path(path).suffix == ".png":
        figure.savefig(path, format="png", dpi=160, metadata={"Software": None})
        return
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
