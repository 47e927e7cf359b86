#!/usr/bin/env python3
"""Checks the manifests of examples/kubernetes against the schemas of Kubernetes and Kubeflow.

    python -m venv build/manifests
    build/manifests/bin/pip install kubernetes-validate kubeflow-trainer-api
    build/manifests/bin/python tools/check_manifests.py --mpijob kubeflow.org_mpijobs.yaml

The schemas are packages of their own, which neither TF-Libra nor its tests need. No package has
the schema of MPIJobs: `--mpijob` names manifests/base/kubeflow.org_mpijobs.yaml of the repository
kubeflow/mpi-operator. Without the file an MPIJob is a fault.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "kubernetes"
KUBERNETES = "1.33"


def unknown_fields(
    object_fields: Mapping[str, Any], known: Mapping[str, Any], at: str
) -> Iterator[str]:
    """Yields the fields of a manifest that the schema's model has dropped."""
    for name, value in object_fields.items():
        if name not in known:
            yield f"{at}.{name}"
        elif isinstance(value, Mapping):
            yield from unknown_fields(value, known[name], f"{at}.{name}")


def closed(schema: Any) -> Any:
    """Returns a schema that allows no other properties than those that it lists."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = {name: closed(value) for name, value in schema.items()}
    if isinstance(result.get("properties"), Mapping) and "type" in result:
        result.setdefault("additionalProperties", False)
    return result


def mpijob_faults(manifest: dict[str, Any], definition: Mapping[str, Any]) -> Iterator[str]:
    """Yields the faults of an MPIJob under the operator's definition of the resource."""
    import jsonschema

    version = manifest["apiVersion"].rpartition("/")[2]
    schemas = {
        item["name"]: item["schema"]["openAPIV3Schema"] for item in definition["spec"]["versions"]
    }
    if version not in schemas:
        yield f"version {version} is none of {', '.join(schemas)}"
        return
    for error in jsonschema.Draft7Validator(closed(schemas[version])).iter_errors(manifest):
        yield f"{error.json_path}: {error.message}"


def check(manifest: dict[str, Any], mpijob: Mapping[str, Any] | None) -> list[str]:
    """Returns the faults of a manifest.

    Args:
        manifest: the manifest.
        mpijob: definition of the resource MPIJob, or None.
    """
    import kubernetes_validate
    from kubeflow_trainer_api import models

    kind = manifest["kind"]
    if kind == "MPIJob":
        if mpijob is None:
            return ["no schema: --mpijob names it"]
        return list(mpijob_faults(manifest, mpijob))
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

    parser = argparse.ArgumentParser(description="Checks the manifests of examples/kubernetes.")
    parser.add_argument("--mpijob", type=Path, help="kubeflow.org_mpijobs.yaml of the MPI operator")
    path = parser.parse_args().mpijob
    mpijob = next(iter(yaml.safe_load_all(path.read_text()))) if path else None
    failed = False
    for path in sorted(FOLDER.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            faults = check(manifest, mpijob)
            failed = failed or bool(faults)
            print(f"{path.name}: {manifest['kind']}: {'; '.join(faults) or 'valid'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
