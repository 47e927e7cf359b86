"""Measures what the wire alone takes for a model's gradients, and how near strategies come.

    python -m benchmarks.wire --hosts 2 --rate 5gbit --model cnn5m --json wire.json
    python -m benchmarks.wire --hosts 2 --rate 5gbit --against step_time.json

Workers are placed as those of `benchmarks.step_time`, and move over the same links, by sockets
alone (`benchmarks/jobs/wire.py`), as many bytes as an all-reduce of all gradients moves.

What a number means:
- Core time is what the exchange takes of a worker's core, kernel included; wall time is from when a
  rank leaves a barrier to when it has sent and received all. Both are the slowest rank's; medians
  over rounds.
- No strategy that leaves gradients to the same sockets and computes on the same core can take
  less than the limit: the step without communication, `none`, and the core time.
- With `--against`, an outcome of `benchmarks.step_time` for the same model and network: the share
  of what Horovod loses to the limit that each strategy wins back,
  (horovod - strategy) / (horovod - limit).

The JSON: {"wall_seconds", "core_seconds": {"median", "p10", "p90"}, "limit_seconds", "shares":
{strategy: share}, both None without --against, "settings", "machine", "versions"}.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import results
from benchmarks.jobs.job import WireJob
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
_PLACING = Placing(FLAGS)
flags.DEFINE_integer("rounds", 50, "Exchanges that count.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_string(
    "against",
    None,
    "JSON of benchmarks.step_time, with horovod and none among its strategies.",
    flag_values=FLAGS,
)


@flags.validator("against", flag_values=FLAGS)
def _is_outcome(path: str | None) -> bool:
    if path is None:
        return True
    try:
        strategies = json.loads(Path(path).read_text())["strategies"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise flags.ValidationError(f"{path!r} is no outcome of step_time: {error!r}") from error
    missing = {"horovod", "none"} - set(strategies)
    if missing:
        raise flags.ValidationError(f"{path!r} lacks {', '.join(sorted(missing))}")
    return True


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    against = None if FLAGS.against is None else json.loads(Path(FLAGS.against).read_text())
    if against is not None and (reported := _differences(against["settings"])):
        print(f"wire: --against is of another job: {reported}", file=sys.stderr)
        return 2
    try:
        measured = _PLACING.measured("wire", WireJob, rounds=FLAGS.rounds)
    except WorkersFailedError as error:
        print(f"wire: {error}", file=sys.stderr)
        return 1
    seconds = {key: results.spread(measured[key]) for key in ("wall_seconds", "core_seconds")}
    document = {
        **seconds,
        **evaluate(seconds["core_seconds"]["median"], against and against["strategies"]),
        "settings": _PLACING.settings() | {"rounds": FLAGS.rounds} | measured["settings"],
        "machine": here,
        "versions": versions(),
    }
    _PLACING.write(document)
    print(table(document))
    return 0


def _differences(settings: Mapping[str, Any]) -> str:
    """Returns how the earlier measurement was placed differently; empty if it was not."""
    mine = _PLACING.settings()
    found = [
        f"{name} is {settings.get(name)!r}, not {mine[name]!r}"
        for name in ("np", "model", "pinned")
        if settings.get(name) != mine[name]
    ]
    # That of step_time goes on with what Horovod ran on.
    if not str(settings.get("network")).startswith(mine["network"]):
        found.append(f"network is {settings.get('network')!r}, not {mine['network']!r}")
    return ", ".join(found)


def evaluate(core_seconds: float, strategies: Mapping[str, Any] | None) -> dict[str, Any]:
    """The limit, and the share of what Horovod loses to it that each strategy wins back.

    Args:
        core_seconds: of an exchange.
        strategies: as `benchmarks.step_time` writes them, with `horovod` and `none`; or None.
    """
    if strategies is None:
        return {"limit_seconds": None, "shares": None}
    medians = results.medians({"strategies": strategies})
    limit = medians["none"] + core_seconds
    lost = medians["horovod"] - limit
    others = {name: value for name, value in medians.items() if name not in ("none", "horovod")}
    shares = {name: (medians["horovod"] - value) / lost for name, value in others.items()}
    return {"limit_seconds": limit, "shares": shares if lost > 0 else None}


def table(document: Mapping[str, Any]) -> str:
    """A line for the exchange, and one per strategy."""
    settings = document["settings"]
    wall, core = (document[key]["median"] * 1e3 for key in ("wall_seconds", "core_seconds"))
    lines = [
        f"{settings['model']}, {settings['np']} workers, {settings['network']},"
        f" {settings['transport']}, congestion control {settings['congestion_control']}",
        f"{settings['num_bytes'] / 1e6:.1f} MB of gradients, {settings['sent_bytes'] / 1e6:.1f} MB"
        f" sent by each rank: {wall:.2f} ms, of which {core:.2f} ms of its core",
    ]
    if document["limit_seconds"] is not None:
        lines.append(f"limit: {document['limit_seconds'] * 1e3:.1f} ms per step")
    for name, share in (document["shares"] or {}).items():
        lines.append(f"{name}: {share:.2f} of what Horovod loses to the limit is won back")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
