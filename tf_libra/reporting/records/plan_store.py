"""Plan cache on disk, for the next job of the same model, machines and versions."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_libra.autotune import TensorSpec, TuningResult
from tf_libra.cost_model import cost_model_from_json
from tf_libra.internal import validation
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def fingerprint(
    tensors: Sequence[TensorSpec], strategy: Any, num_workers: int, circumstances: dict[str, str]
) -> str:
    """Return the hexadecimal SHA-256 of all that a cached plan depends on."""
    document = {
        "tensors": [[tensor.name, tensor.num_bytes, tensor.dtype] for tensor in tensors],
        "strategy": repr(strategy),
        "num_workers": num_workers,
        "circumstances": circumstances,
        "machine": [platform.machine(), _processor(), len(os.sched_getaffinity(0))],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Return the processor's name from Linux; platform.processor() is empty on Debian."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("model name")), "")


def load(folder: Path, key: str) -> TuningResult | None:
    """Return the result cached under `key`; None without one.

    Raises:
        ValueError: the cached file is malformed.
    """
    path = _path(folder, key)
    if not path.exists():
        return None
    size = path.stat().st_size
    if size > 2 * validation.MAX_JSON_CHARACTERS:
        raise ValueError(f"{path.name} has {size} bytes, more than a plan and a profile can have")
    text = path.read_text()
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deep") from None
    if isinstance(document, dict) and "format" not in document:
        return _of_the_version_before(document)
    return TuningResult.from_json(text)


def _of_the_version_before(document: dict[str, Any]) -> TuningResult:
    """Read the format of the first version: three texts of a complete result."""
    if not isinstance(document.get("plan"), str):
        raise ValueError("plan must be a JSON document")
    profile, cost_model = document.get("profile"), document.get("cost_model")
    return TuningResult(
        Plan.from_json(document["plan"]),
        None if profile is None else BackwardProfile.from_json(profile),
        None if cost_model is None else cost_model_from_json(cost_model),
        is_complete=True,
    )


def store(folder: Path, key: str, conclusion: TuningResult) -> Path:
    """Store a result atomically, replacing an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, key)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(conclusion.to_json())
    temporary.replace(path)
    return path


def _path(folder: Path, key: str) -> Path:
    return folder / f"tf_libra-{key[:32]}.json"
