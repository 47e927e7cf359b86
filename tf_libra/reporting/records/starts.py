"""Warm starts in `cache_dir`, from jobs for similar models and clusters."""

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from tf_libra.autotune.warm_start import JobSignature, LayerSignature, PlanOutline, WarmStart
from tf_libra.internal import validation
from tf_libra.planning.comm_config import setting_of

_FORMAT = "tf-libra start"
_VERSION = 1
_PATTERN = "tf_libra_start-*.json"
# Most recent files that are read.
MAX_KEPT = 64


def store(folder: Path, start: WarmStart) -> Path:
    """Store a warm start atomically, replacing that of the same job and strategy."""
    folder.mkdir(parents=True, exist_ok=True)
    document = dataclasses.asdict(start)
    job, rate = document["job"], start.job.bytes_per_second
    graphs = {name: value for name, value in job.items() if name != "bytes_per_second"}
    # Measurements of one network differ, so they are in one file or in two.
    octave = [] if rate is None else [round(math.log2(rate))]
    whose = json.dumps([graphs, start.strategy, *octave], sort_keys=True)
    if rate is None:
        document["job"] = graphs
    key = hashlib.sha256(whose.encode()).hexdigest()[:32]
    path = folder / _PATTERN.replace("*", key)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"format": _FORMAT, "version": _VERSION} | document))
    temporary.replace(path)
    return path


def load(folder: Path) -> tuple[list[WarmStart], list[str]]:
    """Return warm starts, the latest first, and the errors of unreadable files."""
    found, problems = [], []
    paths = sorted(folder.glob(_PATTERN), key=_modified, reverse=True)
    for path in paths[:MAX_KEPT]:
        try:
            found.append(_read(path.read_text()))
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return found, problems


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed since the listing
        return 0.0


def _read(text: str) -> WarmStart:
    value: dict[str, Any] = validation.keys(
        _FORMAT,
        validation.json_document(_FORMAT, _VERSION, text),
        required=("job", "strategy", "outline"),
        optional=("settings", "setting"),
    )
    job = dict(validation.keys("job", value["job"], *validation.field_names(JobSignature)))
    job["layers"] = validation.items("layers", job["layers"], LayerSignature)
    outline = PlanOutline(
        **validation.keys("outline", value["outline"], *validation.field_names(PlanOutline))
    )
    settings = validation.sequence("settings", value.get("settings", ()))
    if value.get("setting") is not None:  # as earlier versions kept it: the best alone
        settings = (value["setting"],)
    return WarmStart(
        JobSignature(**job),
        validation.text("strategy", value["strategy"]),
        outline,
        tuple(setting_of(setting) for setting in settings),
    )
