"""The benchmark's JSON files: what they hold, how they are written, and how they are read back.

Every step writes one file, and rewrites it whenever it has learned something, so that a run that is
cut short leaves what it had. Reading needs neither PyTorch nor a GPU.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra import BackwardProfile, ContentionModel, OverlapSample

FORMAT = "tf-libra gpu benchmark"
VERSION = 1
STEPS = ("channels", "curves", "profiles", "training")

_KEYS = {
    "format": str,
    "version": int,
    "step": str,
    "dry_run": bool,
    "complete": bool,
    "started": str,
    "environment": dict,
    "settings": dict,
    "notes": list,
    "results": dict,
}
# What a GPU's results must say of where they come from.
MEASURED_ON = ("device", "driver", "cuda", "nccl", "pytorch", "sharing", "placement")


@dataclass(frozen=True)
class Measured:
    """Results of a GPU run, in the planners' own types.

    Attributes:
      environment: device, driver, versions and how two ranks shared the device.
      cost: fitted to the curves of all kernels; None where that step is missing.
      kernel_costs: the same for each kernel alone.
      model_costs: fitted to the training of each network, with its number of workers.
      profiles: backward computation of each network on the whole device.
    """

    environment: Mapping[str, Any]
    cost: ContentionModel | None
    kernel_costs: Mapping[str, ContentionModel]
    model_costs: Mapping[str, ContentionModel]
    profiles: Mapping[str, BackwardProfile]


def as_value(value: Any) -> Any:
    """A profile, model or plan as plain JSON, from its own JSON text."""
    return json.loads(value.to_json())


def sample_value(sample: OverlapSample) -> dict[str, Any]:
    """A sample as plain JSON."""
    return {
        name: getattr(sample, name)
        for name in (
            "num_bytes",
            "num_threads",
            "compute_seconds",
            "overlap_seconds",
            "residual_seconds",
            "step",
            "group",
            "plan",
        )
    }


def samples_from(values: Any) -> tuple[OverlapSample, ...]:
    """Samples from plain JSON; `ValueError` names what is wrong with one."""
    try:
        return tuple(OverlapSample(**value) for value in values)
    except TypeError as error:
        raise ValueError(f"samples: {error}") from None


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replaces a file atomically: a reader sees the old text or the new.

    Raises:
      ValueError: the document lacks a key, or one is of another type.
    """
    check(document)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps(document, indent=1) + "\n")
    os.chmod(name, 0o644)
    os.replace(name, path)


def check(document: Any) -> Mapping[str, Any]:
    """Returns a document of this format and version.

    Raises:
      ValueError: it is not one; the text names the key.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"a document must be an object, got {type(document).__name__}")
    for key, kind in _KEYS.items():
        if key not in document:
            raise ValueError(f"{key} is missing")
        if type(document[key]) is not kind:
            raise ValueError(f"{key} must be {kind.__name__}, got {document[key]!r}")
    if unknown := sorted(set(document) - set(_KEYS)):
        raise ValueError(f"{unknown[0]} is unknown")
    if document["format"] != FORMAT or document["version"] != VERSION:
        raise ValueError(
            f"format must be {FORMAT!r} version {VERSION}, got {document['format']!r} version "
            f"{document['version']}"
        )
    if document["step"] not in STEPS:
        raise ValueError(f"step must be one of {', '.join(STEPS)}, got {document['step']!r}")
    if not document["dry_run"]:
        for key in MEASURED_ON:
            if not document["environment"].get(key):
                raise ValueError(f"environment.{key} is missing: nothing says what this ran on")
    return document


def read(path: Path) -> Mapping[str, Any]:
    """Reads one file; `ValueError` names it and what is wrong with it."""
    try:
        return check(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def load(folder: Path, *, dry_run: bool = False) -> Measured:
    """Reads what the steps left in a folder; what was cut short counts as far as it came.

    Args:
      folder: as given to `--out`.
      dry_run: take a dry run's files, which hold a processor's times and not a GPU's.

    Raises:
      ValueError: no file of a step is there, one is malformed, or one is of a dry run and
        `dry_run` is false.
    """
    documents = {}
    for step in STEPS:
        path = folder / f"{step}.json"
        if path.exists():
            documents[step] = read(path)
            if documents[step]["dry_run"] and not dry_run:
                raise ValueError(f"{path} is of a dry run: no GPU was measured")
    if not documents:
        raise ValueError(f"{folder} holds no results: expected {', '.join(STEPS)} as .json")
    results = {step: document["results"] for step, document in documents.items()}
    curves = results.get("curves", {})
    return Measured(
        environment=next(iter(documents.values()))["environment"],
        cost=_cost(curves.get("cost_model")),
        kernel_costs={
            name: cost
            for name, kernel in curves.get("kernels", {}).items()
            if (cost := _cost(kernel.get("cost_model"))) is not None
        },
        model_costs={
            name: cost
            for name, model in results.get("training", {}).get("models", {}).items()
            if (cost := _cost(model.get("cost_model"))) is not None
        },
        profiles={
            name: BackwardProfile.from_json(json.dumps(model["profile"]))
            for name, model in results.get("profiles", {}).get("models", {}).items()
        },
    )


def _cost(value: Any) -> ContentionModel | None:
    return None if value is None else ContentionModel.from_json(json.dumps(value))
