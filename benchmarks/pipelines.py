"""Steps in stages against data-parallel ones, in one job and in turns; and what was predicted.

    python -m benchmarks.pipelines --hosts 2 --rate 1gbit --model mlp --microbatches 4 \
        --strategies one-worker,horovod,syneasgd,wfbp,mg-wfbp,libra --rounds 30 --json FILE

`spp` is `tf_libra.optimize(strategies.Spp(num_microbatches=...))`, which plans how many stages
there are; `--stages` fixes their number. The others are as in `benchmarks.step_time`, which says
what a step's time, a round and a ratio are. They train one model, and `spp` one of its own that
begins alike: what one has trained in stages the next would have to bring up to date first.

What a number means besides: `predicted` is `plan.predicted_seconds`, of layers and links as they
were measured before the first step; measured over predicted is a ratio for every round. `spp to it`
is the ratio of `spp` to a strategy: below 1, stages take less. The best strategy is that of the
least median.

The JSON: {"plan": the pipeline's, "stages", "predicted_seconds", "measured_over_predicted":
{"median", "p10", "p90"}, "best": name, "ratios": {"spp/libra": {...}}, "strategies": {name:
{"median_seconds", "p10_seconds", "p90_seconds"}}, "seconds": {name: one per round}, "explained",
"rounds", "settings", "machine", "versions"}.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import results
from benchmarks.jobs.job import Job
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError
from tf_libra import strategies

_ONE_WORKER = "one-worker"
_STRATEGIES = (_ONE_WORKER, "horovod", *strategies.BY_NAME)

FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
_PLACING = Placing(FLAGS)
flags.DEFINE_list(
    "strategies",
    "horovod,syneasgd,wfbp,mg-wfbp,libra",
    f"Data-parallel ones, or one worker on the joint batch: any of {', '.join(_STRATEGIES)}.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("microbatches", 4, "Of a step in stages.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_integer("stages", None, "None: as planned.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 30, "Rounds that count.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_bool("markdown", False, "Print the table as Markdown.", flag_values=FLAGS)


@flags.validator("strategies", flag_values=FLAGS)
def _are_strategies(names: Sequence[str]) -> bool:
    unknown = [name for name in names if name not in _STRATEGIES]
    if unknown or not names or len(set(names)) < len(names):
        raise flags.ValidationError(
            f"must name one or more of {', '.join(_STRATEGIES)}, each once; got {','.join(names)}"
        )
    return True


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    chosen = tuple(FLAGS.strategies)
    try:
        measured = _PLACING.measured(
            "pipelines",
            Job,
            strategies=(*chosen, _pipeline()),
            rounds=FLAGS.rounds,
        )
    except WorkersFailedError as error:
        print(f"pipelines: {error}", file=sys.stderr)
        return 1
    document = {
        **evaluate(chosen, measured["seconds"], measured["plan"]),
        "explained": measured["explained"],
        "rounds": FLAGS.rounds,
        "settings": _PLACING.settings() | {"microbatches": FLAGS.microbatches},
        "machine": here,
        "versions": versions(),
    }
    _PLACING.write(document)
    print(document["explained"], end="\n\n")
    print(table(document, markdown=FLAGS.markdown))
    return 0


def _pipeline() -> str:
    """The strategy of the step in stages, see `benchmarks.variants`."""
    fixed = "" if FLAGS.stages is None else f":num_stages={FLAGS.stages}"
    return f"spp:num_microbatches={FLAGS.microbatches}{fixed}"


def evaluate(
    names: Sequence[str], seconds: Mapping[str, Sequence[float]], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the results that the module's docstring defines, without the measuring conditions.

    Args:
        names: of the data-parallel strategies.
        seconds: of each round, by name; Horovod's of each of its variants.
        plan: of the pipeline.
    """
    found = {name: list(values) for name, values in seconds.items()}
    better = results.better_horovod(found)
    if better is not None:
        found["horovod"] = found[better]
    chosen = {name: found[name] for name in ("spp", *names)}
    # One worker alone is no data-parallel strategy.
    compared = [name for name in names if name != _ONE_WORKER] or names
    predicted = plan["predicted_seconds"]
    return {
        "plan": plan,
        "stages": len(plan["stages"]),
        "predicted_seconds": predicted,
        "measured_over_predicted": results.spread(np.divide(chosen["spp"], predicted)),
        "best": min(compared, key=lambda name: float(np.median(chosen[name]))),
        "ratios": {
            f"spp/{name}": results.spread(np.divide(chosen["spp"], chosen[name])) for name in names
        },
        "strategies": results.summaries(chosen),
        "seconds": found,
    }


def table(document: Mapping[str, Any], *, markdown: bool) -> str:
    """Strategies by rows, and what was predicted of the pipeline."""
    settings, stages = document["settings"], document["stages"]
    kind = "data parallelism" if stages == 1 else f"{stages} stages"
    over = document["measured_over_predicted"]
    rows: list[tuple[str, ...]] = [("strategy", "step, ms", "spp to it")]
    for name, strategy in document["strategies"].items():
        step = [strategy[f"{key}_seconds"] * 1e3 for key in ("median", "p10", "p90")]
        ratio = document["ratios"].get(f"spp/{name}")
        to_it = "" if ratio is None else _cell([ratio[key] for key in ("median", "p10", "p90")], 3)
        best = " (best)" if name == document["best"] else ""
        rows.append((f"{name}{best}", _cell(step, 1), to_it))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if markdown:
        rows.insert(1, tuple("-" * width for width in widths))
        lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return "\n".join(
        [
            f"{settings['model']}, {settings['np']} workers, {settings['network']},"
            f" {settings['microbatches']} microbatches, {document['rounds']} rounds;"
            " median (10th to 90th percentile) of the slowest rank",
            f"spp: {kind}, predicted {document['predicted_seconds'] * 1e3:.1f} ms, measured"
            f" over predicted {_cell([over[key] for key in ('median', 'p10', 'p90')], 3)}",
            "",
            *lines,
        ]
    )


def _cell(values: Sequence[float], digits: int) -> str:
    median, low, high = (f"{value:.{digits}f}" for value in values)
    return f"{median} ({low} to {high})"


if __name__ == "__main__":
    app.run(main)
