"""DeepPool's evaluation again, as tables and pictures.

    python -m benchmarks.deeppool [--document docs/deeppool_paper.md]

It rewrites the tables in the document, with pictures in its folder `images`. Layer times are those
that DeepPool's authors publish (`benchmarks/data/deeppool_a100.json`).
"""

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

import tf_libra
from benchmarks.deeppool import document, evaluation, models, pictures
from benchmarks.deeppool.claims import claims as compare_claims
from benchmarks.deeppool.sensitivity import sensitivity as compute_sensitivity
from benchmarks.markdown import fill, picture
from tf_libra.model_parallel.simulation.plots import plot_burst


def run(
    path: Path,
    scales: Sequence[int] = evaluation.SCALES,
    sensitive: Sequence[str] = models.NETWORKS,
) -> None:
    """Computes everything and fills the document, which has to be there.

    Args:
      path: the document.
      scales: clusters of the evaluation at scale.
      sensitive: networks whose sensitivity is computed.
    """
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)

    def image(name: str) -> Path:
        return images / f"burst_{name}.svg"

    def shown(text: str, name: str) -> str:
        return picture(text, image(name), path)

    setting = evaluation.Setting()
    figure_9 = evaluation.scenarios(setting)
    figure_10 = {name: evaluation.operating_points(setting, name) for name in models.NETWORKS}
    figure_11 = evaluation.mechanisms(setting)
    scaled = evaluation.scaled_out(setting, scales=scales)
    pictures.throughput(figure_9, image("throughput"))
    every_point = [row for rows in figure_10.values() for row in rows]
    pictures.operating_points(every_point, image("operating_points"))
    pictures.mechanisms(figure_11, image("mechanisms"))
    pictures.scale(scaled, image("scale"))
    plans = []
    scaling = models.profile("vgg16", evaluation.GPUS, evaluation.BATCH, setting.parameters)
    plans.append(
        ("data-parallel, 8", tf_libra.make_burst_plan(scaling, "data-parallel", num_devices=8))
    )
    for limit in (1.5, 2.0):
        plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        plans.append((f"deeppool, {limit:g}", plan))
    plot_burst(plans, image("plans"), salt="plans")
    _strip(image("plans"))
    claims = compare_claims(figure_9, figure_10, scaled)
    blocks = {
        "parameters": document.parameters(setting),
        "workloads": document.workloads(evaluation.workloads(setting)),
        "plans": shown("VGG-16 on 8 GPUs: devices per layer, and gaps", "plans"),
        "claims": document.claims(claims),
        "throughput": document.rows(figure_9) + shown("Throughput on 8 GPUs", "throughput"),
        "operating_points": shown("Bursts and static partitions", "operating_points"),
        "mechanisms": document.rows(figure_11)
        + shown("One mechanism after the other", "mechanisms"),
        "scale": document.scaled(scaled) + shown("8 to 1,024 GPUs", "scale"),
        "sensitivity": document.sensitivity(compute_sensitivity(setting, sensitive)),
    }
    path.write_text(fill(path.read_text(), blocks))


def _strip(path: Path) -> None:
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    path = Path(_DOCUMENT.value)
    run(path)
    print(path.read_text())


if __name__ == "__main__":
    _DOCUMENT = flags.DEFINE_string("document", "docs/deeppool_paper.md", "file to fill in")
    app.run(main)
