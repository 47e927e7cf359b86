#!/usr/bin/env python3
"""Checks the manifests of examples/kubernetes against the schemas of Kubernetes and Kubeflow.

    python -m venv build/manifests
    build/manifests/bin/pip install kubernetes-validate kubeflow-trainer-api
    build/manifests/bin/python tools/check_manifests.py

The schemas are packages of their own, which neither TF-Libra nor its tests need.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "kubernetes"
KUBERNETES = "1.33"


def unknown_fields(given: Mapping[str, Any], known: Mapping[str, Any], at: str) -> Iterator[str]:
    """Yields the fields of a manifest that the schema's model has dropped."""
    for name, value in given.items():
        if name not in known:
            yield f"{at}.{name}"
        elif isinstance(value, Mapping):
            yield from unknown_fields(value, known[name], f"{at}.{name}")


def check(manifest: dict[str, Any]) -> list[str]:
    """Returns the faults of a manifest."""
    import kubernetes_validate
    from kubeflow_trainer_api import models

    kind = manifest["kind"]
    if kind == "TrainJob":
        try:
            parsed = models.TrainerV1alpha1TrainJob.from_dict(manifest).to_dict()
        except ValueError as error:
            return [str(error)]
        return [f"unknown field {name}" for name in unknown_fields(manifest, parsed, kind)]
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error.message)]
    return []


def main() -> int:
    """Prints a line per manifest; returns 1 if one has a fault."""
    import yaml

    failed = False
    for path in sorted(FOLDER.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            faults = check(manifest)
            failed = failed or bool(faults)
            print(f"{path.name}: {manifest['kind']}: {'; '.join(faults) or 'valid'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
