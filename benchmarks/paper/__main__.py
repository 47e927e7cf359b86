"""The evaluations of LIBRA's and ASC-WFBP's papers again, as tables and pictures.

    python -m benchmarks.paper [--parameters FILE_OR_FOLDER] [--document docs/paper.md]

Without flags it rewrites the tables in docs/paper.md, of LIBRA's parameters by what its paper says
and by published throughputs, with pictures in docs/images and all numbers in
benchmarks/results/paper.json. With other parameters it writes a document of its own for them: a
file (`Parameters.to_json`), or the folder that `benchmarks.gpu` left its results in.
`--print_parameters` shows LIBRA's as such a file.
"""

import dataclasses
import json
from pathlib import Path

from absl import app, flags

from benchmarks.markdown import fill, picture
from benchmarks.paper import document, evaluation, pictures
from benchmarks.paper.gpu import of_gpu
from benchmarks.paper.parameters import (
    FITTED_CLAIM,
    Parameters,
    of_asc_wfbp,
    of_libra,
    of_published_throughputs,
)
from benchmarks.paper.sensitivity import sensitivity as compute_sensitivity


def run(
    parameters: Parameters,
    path: Path,
    results: Path,
    *,
    with_asc: bool,
    points: int,
    published: Parameters | None = None,
) -> None:
    """Computes everything; writes the document, its pictures and its JSON file.

    Args:
      parameters: of LIBRA's evaluation.
      path: the document, filled in if it is there, else made.
      results: the JSON file of all numbers, overwritten.
      with_asc: also ASC-WFBP's evaluation, whose parameters are its own.
      points: of each sweep of the sensitivity.
      published: another set, of which `FITTED_CLAIM` was fitted; adds its testbed.
    """
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)

    def image(name: str) -> Path:
        return images / f"{path.stem}_{name}.svg"

    def shown(text: str, name: str) -> str:
        return picture(text, image(name), path)

    testbed = evaluation.on_testbed(parameters)
    scaled = evaluation.scaled_out(parameters)
    names = [workload.name for workload in parameters.workloads]
    compared = evaluation.claims(testbed, evaluation.largest(parameters))
    sweeps = compute_sensitivity(parameters, points)
    pictures.throughput(testbed, image("throughput"))
    pictures.breakdown(testbed, image("breakdown"))
    pictures.scale(parameters, scaled, image("scale"))
    pictures.sensitivity(sweeps, image("sensitivity"))
    blocks = {
        "sources": document.sources(parameters),
        "testbed": document.testbed(testbed)
        + shown("Throughput", "throughput")
        + shown("Backward's time", "breakdown"),
        "claims": document.claims(compared),
        "scale": document.scale(parameters, scaled)
        + shown("Throughput per node, 16 to 2048 nodes", "scale"),
        "sensitivity": document.sensitivity(sweeps)
        + shown("LIBRA's gain as one parameter moves", "sensitivity"),
    }
    found = {
        "parameters": json.loads(parameters.to_json()) | {"workloads": names},
        "testbed": testbed,
        "claims": compared,
        "scale": scaled,
        "sensitivity": sweeps,
    }
    if with_asc:
        iterations = evaluation.asc_wfbp(of_asc_wfbp())
        pictures.iterations(iterations, image("asc_wfbp"))
        blocks["asc_wfbp"] = document.asc_wfbp(iterations) + shown("Iteration times", "asc_wfbp")
        found["asc_wfbp"] = iterations
    if published is not None:
        rows = evaluation.on_testbed(published)
        again = evaluation.claims(rows, evaluation.largest(published))
        pictures.throughput(rows, image("throughput_published"))
        blocks |= {
            "published_sources": document.sources(published),
            "published_testbed": document.testbed(rows)
            + shown("Throughput, by published throughputs", "throughput_published"),
            "published_claims": document.claims(again, (FITTED_CLAIM,)),
        }
        found["published"] = {
            "parameters": json.loads(published.to_json()) | {"workloads": names},
            "testbed": rows,
            "claims": again,
        }
    text = path.read_text() if path.exists() else document.skeleton(parameters, blocks)
    path.write_text(fill(text, blocks))
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1, default=_plain) + "\n")


def _plain(value: object) -> object:
    assert dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    parameters = of_libra()
    if _PRINT.value:
        print(parameters.to_json())
        return
    source_name = _PARAMETERS.value
    if source_name:
        source = Path(source_name)
        if source.is_dir():
            parameters = of_gpu(source, _LIBRARY_THREADS.value)
        else:
            parameters = Parameters.from_json(source.read_text())
    default = f"docs/paper_{Path(source_name).stem}.md" if source_name else "docs/paper.md"
    path = Path(_DOCUMENT.value or default)
    published = None if source_name else of_published_throughputs()
    results = Path(_RESULTS.value or f"benchmarks/results/{path.stem}.json")
    run(
        parameters,
        path,
        results,
        with_asc=not source_name,
        points=_POINTS.value,
        published=published,
    )
    print(path.read_text())


if __name__ == "__main__":
    _PARAMETERS = flags.DEFINE_string(
        "parameters", None, "another set: JSON file, or folder of benchmarks.gpu"
    )
    _LIBRARY_THREADS = flags.DEFINE_integer("library_threads", 1024, "of NCCL, for such a folder")
    _DOCUMENT = flags.DEFINE_string("document", None, "the Markdown file to fill in or make")
    _RESULTS = flags.DEFINE_string("json", None, "all numbers: benchmarks/results/, by default")
    _POINTS = flags.DEFINE_integer("points", 8, "values of each parameter in the sweeps", 2)
    _PRINT = flags.DEFINE_bool("print_parameters", False, "show LIBRA's parameters as JSON")
    app.run(main)
