"""Step times of strategies, measured in one job and interleaved round by round.

    python -m benchmarks.step_time --np 2 --model cnn5m \
        --strategies none,horovod,syneasgd,wfbp,libra --rounds 100 --json out.json

Strategies: `none` sends nothing, which is the limit; `horovod` is the library itself, the better
(by median) of hvd.allreduce per gradient and hvd.grouped_allreduce; any other is
`tf_libra.optimize(name)`, which has settled on its plan before the first round.

What a number means:
- A step's time is that of the slowest rank, each from when it leaves a barrier, which is not
  counted, to when the loss and all updates of the step are done.
- A round holds one step of every strategy, in an order shuffled anew for every round and the same
  on all ranks, so that no strategy always follows the same one.
- A ratio is taken within each round; its median and percentiles are over rounds. Ratios compare;
  seconds of a shared machine alone do not.

On several hosts, which are network namespaces of this machine with shaped links between them
(`benchmarks/cluster.py`; needs root), and there with Horovod on Gloo or on MPICH:

    python -m benchmarks.step_time --hosts 2 --rate 5gbit --strategies none,horovod,mg-wfbp,libra
    python -m benchmarks.step_time --hosts 2 --rate 5gbit --mpich build/horovod-mpich ...

Every worker has one core, one intra-op thread, and the same model, data and optimizer for all
strategies (`benchmarks/jobs/interleaved.py`).

The JSON: {"strategies": {name: {"median_seconds", "p10_seconds", "p90_seconds"}}, "ratios":
{"libra/horovod": {"median", "p10", "p90"}}, "seconds": {name: one per round}, "plan": {name: plan},
"rounds", "settings", "machine", "versions"}.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import cluster, models, results
from benchmarks.jobs.job import Job
from benchmarks.machine import machine, versions
from tf_libra import strategies

_STRATEGIES = (*results.BASELINES[::-1], *strategies.BY_NAME)

# Only the program that runs has its flags among those of the process; imported, it keeps them.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()

_NP = flags.DEFINE_integer(
    "np", 2, "Number of workers, at most one per core of this machine.", flag_values=FLAGS
)
_HOSTS = flags.DEFINE_integer(
    "hosts",
    None,
    "Hosts with one worker each, instead of --np workers on one.",
    lower_bound=2,
    flag_values=FLAGS,
)
_RATE = flags.DEFINE_string(
    "rate", None, "Of each host's link, such as 5gbit; see tc(8).", flag_values=FLAGS
)
_MPICH = flags.DEFINE_string(
    "mpich",
    None,
    "Folder of a Horovod on MPICH, made by tools/build_horovod.py --mpich FOLDER.",
    flag_values=FLAGS,
)
_MODEL = flags.DEFINE_string(
    "model",
    "cnn5m",
    f"What to train: one of {', '.join(models.MODELS)}, or file.py:function, a function that"
    " returns (keras_model, inputs, labels, loss).",
    flag_values=FLAGS,
)
_CHOSEN = flags.DEFINE_list(
    "strategies",
    "none,horovod,syneasgd,wfbp,libra",
    f"Any of {', '.join(_STRATEGIES)}.",
    flag_values=FLAGS,
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 100, "Rounds that count.", lower_bound=1, flag_values=FLAGS
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of weights, data and order.", lower_bound=0, flag_values=FLAGS
)
_INTER_OP = flags.DEFINE_integer(
    "inter_op_threads",
    2,
    "TensorFlow's inter-op threads, for every strategy.",
    lower_bound=1,
    flag_values=FLAGS,
)
_JSON = flags.DEFINE_string("json", None, "File to write the outcome to.", flag_values=FLAGS)
_MARKDOWN = flags.DEFINE_bool("markdown", False, "Print the table as Markdown.", flag_values=FLAGS)


@flags.validator("np", flag_values=FLAGS)
@flags.validator("hosts", flag_values=FLAGS)
def _has_cores(count: int | None) -> bool:
    if count is None:
        return True
    cores = len(os.sched_getaffinity(0))
    if count < 2:
        raise flags.ValidationError("must be at least 2: one worker has nobody to all-reduce with")
    if count > cores:
        raise flags.ValidationError(f"must be at most {cores}: every worker needs a core")
    return True


@flags.multi_flags_validator(
    ["hosts", "rate", "mpich"], "--rate and --mpich are of a network: say how many --hosts", FLAGS
)
def _has_hosts(values: dict[str, Any]) -> bool:
    return values["hosts"] is not None or (values["rate"] is None and values["mpich"] is None)


@flags.validator("hosts", flag_values=FLAGS)
def _can_have_hosts(count: int | None) -> bool:
    reason = None if count is None else cluster.why_impossible()
    if reason is not None:
        raise flags.ValidationError(reason)
    return True


@flags.validator("model", flag_values=FLAGS)
def _is_model(model: str) -> bool:
    try:
        models.find(model)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error
    return True


@flags.validator("strategies", flag_values=FLAGS)
def _are_strategies(names: Sequence[str]) -> bool:
    unknown = [name for name in names if name not in _STRATEGIES]
    if unknown or not names or len(set(names)) < len(names):
        raise flags.ValidationError(
            f"must name one or more of {', '.join(_STRATEGIES)}, each once; got {','.join(names)}"
        )
    return True


@flags.validator("json", flag_values=FLAGS)
def _is_writable(path: str | None) -> bool:
    if path is not None and not Path(path).parent.is_dir():
        raise flags.ValidationError(f"there is no folder {str(Path(path).parent)!r}")
    return True


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        job = Job(
            model=_MODEL.value,
            strategies=tuple(_CHOSEN.value),
            rounds=_ROUNDS.value,
            seed=_SEED.value,
            inter_op_threads=_INTER_OP.value,
            output=str(output),
        )
        status = _run(job)
        if status != 0:
            print(f"step_time: the workers failed with status {status}", file=sys.stderr)
            return 1
        measured = json.loads(output.read_text())
    document = _document(job, measured) | {"machine": here, "versions": versions()}
    if _JSON.value is not None:
        Path(_JSON.value).write_text(json.dumps(document, indent=1) + "\n")
    print(results.notes(document), end="\n\n")
    print(results.table(document, markdown=_MARKDOWN.value))
    return 0


def _run(job: Job) -> int:
    """Runs the job's workers, whose output goes to standard error; returns their exit status."""
    launcher = [sys.executable, "-m", "tf_libra.cli", "run", "-np", str(_NP.value)]
    if _HOSTS.value is not None:
        launcher = [sys.executable, "-m", "benchmarks.cluster", f"--hosts={_HOSTS.value}"]
        launcher += [f"--{flag.name}={flag.value}" for flag in (_RATE, _MPICH) if flag.value]
        launcher.append("--")
    worker = [sys.executable, "-m", "benchmarks.jobs.worker", json.dumps(dataclasses.asdict(job))]
    # TensorFlow greets from every process otherwise.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    return subprocess.run([*launcher, *worker], stdout=sys.stderr, env=environment).returncode


def _network() -> str:
    """Between the workers, in words."""
    if _HOSTS.value is None:
        return "one host"
    rate = "not shaped" if _RATE.value is None else f"shaped to {_RATE.value} each way"
    library = "Gloo" if _MPICH.value is None else "MPICH"
    return f"one host each (network namespaces), links {rate}; Horovod on {library}"


def _document(job: Job, measured: dict[str, Any]) -> dict[str, Any]:
    """What the job asked for, in its order, from what its workers measured."""
    seconds, horovod = measured["seconds"], measured["settings"]["horovod"]
    better = results.better_horovod(seconds)
    if better is not None:
        variants = {name: seconds[name] for name in seconds if name.startswith("horovod:")}
        horovod |= {"variant": better, "variants": results.summaries(variants)}
        seconds["horovod"] = seconds[better]
    chosen = {name: seconds[name] for name in job.strategies}
    return {
        "strategies": results.summaries(chosen),
        "ratios": results.ratios(chosen),
        "rounds": job.rounds,
        "seconds": seconds,
        "plan": measured["plans"],
        "settings": {
            "np": _HOSTS.value or _NP.value,
            "network": _network(),
            "model": job.model,
            "seed": job.seed,
            **measured["settings"],
        },
    }


if __name__ == "__main__":
    app.run(main)
