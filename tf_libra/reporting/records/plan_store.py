"""Files of `cache_dir`: tuning results for the same job, warm starts for similar jobs."""

import hashlib
import json
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_libra.autotune import TensorSpec, TuningResult
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.cost_model import cost_model_from_json
from tf_libra.internal import validation
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

_START_PATTERN = "tf_libra_start-*.json"
# Most recent warm starts that are read.
MAX_STARTS = 64


def fingerprint(
    tensors: Sequence[TensorSpec], strategy: Any, num_workers: int, circumstances: dict[str, str]
) -> str:
    """Returns the hexadecimal SHA-256 of all that a cached plan depends on."""
    document = {
        "tensors": [[tensor.name, tensor.num_bytes, tensor.dtype] for tensor in tensors],
        "strategy": repr(strategy),
        "num_workers": num_workers,
        "circumstances": circumstances,
        "machine": [platform.machine(), _processor(), len(os.sched_getaffinity(0))],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Returns the processor's name from Linux; platform.processor() is empty on Debian."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("model name")), "")


def store_plan(folder: Path, key: str, conclusion: TuningResult) -> Path:
    """Stores a result atomically, replacing an earlier one."""
    path = _plan_path(folder, key)
    _replace(path, conclusion.to_json())
    return path


def load_plan(folder: Path, key: str) -> TuningResult | None:
    """Returns the result cached under `key`; None without one.

    Raises:
        ValueError: the cached file is malformed.
    """
    text = load_text(folder, key)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(f"{_plan_path(folder, key).name} is nested too deep") from None
    if isinstance(document, dict) and "format" not in document:
        return _first_version_result(document)
    return TuningResult.from_json(text)


def store_text(folder: Path, key: str, text: str) -> None:
    """Stores JSON text atomically under `key`, replacing an earlier one."""
    _replace(_plan_path(folder, key), text)


def load_text(folder: Path, key: str) -> str | None:
    """Returns the text stored under `key`; None without one.

    Raises:
        ValueError: the file is too large.
    """
    path = _plan_path(folder, key)
    if not path.exists():
        return None
    size = path.stat().st_size
    if size > 2 * validation.MAX_JSON_CHARACTERS:
        raise ValueError(f"{path.name} has {size} bytes, more than a plan and a profile can have")
    return path.read_text()


def _first_version_result(document: dict[str, Any]) -> TuningResult:
    """Reads the format of the first version: three texts of a complete result."""
    if not isinstance(document.get("plan"), str):
        raise ValueError("plan must be a JSON document")
    profile, cost_model = document.get("profile"), document.get("cost_model")
    return TuningResult(
        Plan.from_json(document["plan"]),
        None if profile is None else BackwardProfile.from_json(profile),
        None if cost_model is None else cost_model_from_json(cost_model),
        is_complete=True,
    )


def _plan_path(folder: Path, key: str) -> Path:
    return folder / f"tf_libra-{key[:32]}.json"


def store_warm_start(folder: Path, start: WarmStart) -> Path:
    """Stores a warm start atomically, replacing that of the same job and strategy."""
    fields = start.to_document()
    rate = fields["job"].pop("bytes_per_second", None)
    # Measured rates of one network vary, so their octave is part of the key.
    octave = [] if rate is None else [round(math.log2(rate))]
    identity = json.dumps([fields["job"], start.strategy, *octave], sort_keys=True)
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    path = folder / _START_PATTERN.replace("*", key)
    _replace(path, start.to_json())
    return path


def load_warm_starts(folder: Path) -> tuple[list[WarmStart], list[str]]:
    """Returns warm starts, the latest first, and the errors of unreadable files."""
    starts, problems = [], []
    paths = sorted(folder.glob(_START_PATTERN), key=_modified, reverse=True)
    for path in paths[:MAX_STARTS]:
        try:
            starts.append(WarmStart.from_json(path.read_text()))
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return starts, problems


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed since the listing
        return 0.0


def _replace(path: Path, text: str) -> None:
    """Writes a file so that concurrent readers see the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
