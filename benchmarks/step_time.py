"""Step times of strategies, measured in one job and interleaved round by round.

    python -m benchmarks.step_time --np 2 --model cnn5m \
        --strategies none,horovod,syneasgd,wfbp,libra --rounds 100 --json out.json

Strategies: `none` sends nothing, which is the limit; `one-worker` is one worker that trains the
joint batch of all workers without all-reduces, while the others wait; `horovod` is the library
itself, the better (by median) of hvd.allreduce per gradient and hvd.grouped_allreduce; any other is
`tf_libra.optimize(name)`, which has settled on its plan before the first round. A name may have
arguments, as in `aiacc:streams=1:threads=1/2`, and `libra:wire_dtype=bfloat16` allows plans in that
wire format. Sharded updates, `libra:shard_updates=1`, train a model of their own, as do pipelines
and bursts, such as `spp:num_microbatches=4` and `deeppool`.

With `mwms`, TensorFlow's MultiWorkerMirroredStrategy on its ring, there is no Horovod: workers meet
by TF_CONFIG, and every other strategy's step is one of MultiWorkerMirroredStrategy, too:

    python -m benchmarks.step_time --np 2 --model cnn5m --strategies none,mwms,libra

What a number means:
- A step's time is that of the slowest rank, each from when it leaves a barrier, which is not
  counted, to when the loss and all updates of the step are done.
- A round holds one step of every strategy, in an order that is shuffled again for every round and
  the same on all ranks, so that no strategy always follows the same one.
- With --turn_steps K, a round holds K consecutive steps of every strategy, and a step's time is
  their mean. It includes what the last step leaves behind: with `libra:shard_updates=overlap` the
  gathers, which overlap with the next step only within a turn.
- A ratio is taken within each round; its median and percentiles are over rounds. Ratios compare;
  seconds of a shared machine alone do not.
- A ratio to `one-worker` below 1 is a gain of distributing: both train as many examples per step.

On one host Horovod may run on MPICH, which goes through shared memory there, as lanes do:

    python tools/build_horovod.py --mpich build/horovod-mpich
    python -m benchmarks.step_time --np 2 --mpich build/horovod-mpich ...

On several hosts, which are network namespaces of this machine with shaped links between them
(`benchmarks/cluster.py`; needs root), and there with Horovod on Gloo or on MPICH:

    python -m benchmarks.step_time --hosts 2 --rate 5gbit --strategies none,horovod,mg-wfbp,libra
    python -m benchmarks.step_time --hosts 2 --rate 5gbit --mpich build/horovod-mpich ...

Every worker has --cores cores, as many intra-op threads, and the same model, data and optimizer for
all strategies (`benchmarks/jobs/interleaved.py`, with `mwms` `benchmarks/jobs/mwms.py`). Without
Horovod, --launcher=tf_config lets workers find each other by TF_CONFIG.

The JSON: {"strategies": {name: {"median_seconds", "p10_seconds", "p90_seconds"}}, "ratios":
{"libra/horovod": {"median", "p10", "p90"}}, "seconds": {name: one per round}, "plan": {name: plan},
"rounds", "settings", "machine", "versions"}.
"""

import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from benchmarks import results, variants
from benchmarks.jobs.job import Job
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError

_STRATEGIES = (*results.BASELINES[::-1], *variants.NAMES)

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()

_PLACING = Placing(FLAGS, mpich=True, launcher=True)
_CHOSEN = flags.DEFINE_list(
    "strategies",
    "none,horovod,syneasgd,wfbp,libra",
    f"Any of {', '.join(_STRATEGIES)}.",
    flag_values=FLAGS,
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 100, "Rounds that count.", lower_bound=1, flag_values=FLAGS
)
_TURN_STEPS = flags.DEFINE_integer(
    "turn_steps",
    1,
    "Consecutive steps of each strategy in a round.",
    lower_bound=1,
    flag_values=FLAGS,
)
_MARKDOWN = flags.DEFINE_bool("markdown", False, "Print the table as Markdown.", flag_values=FLAGS)


@flags.validator("strategies", flag_values=FLAGS)
def _are_strategies(names: Sequence[str]) -> bool:
    unknown = [name for name in names if name.partition(":")[0] not in _STRATEGIES]
    if unknown or not names or len(set(names)) < len(names):
        raise flags.ValidationError(
            f"must name one or more of {', '.join(_STRATEGIES)}, each once; got {','.join(names)}"
        )
    for name in names:
        if not variants.is_ours(name) and name not in _STRATEGIES:
            raise flags.ValidationError(f"{name}: only strategies of tf_libra have arguments")
        try:
            if variants.is_ours(name):
                variants.strategy_of(name)
        except ValueError as error:
            raise flags.ValidationError(str(error)) from error
    if {"horovod", "mwms"} <= set(names):
        raise flags.ValidationError(
            "horovod and mwms are of different jobs, and cannot be measured in one; got"
            f" {','.join(names)}"
        )
    if "mwms" in names and any(map(variants.has_stages, names)):
        raise flags.ValidationError(
            f"pipelines and bursts have no job of mwms; got {','.join(names)}"
        )
    return True


flags.register_multi_flags_validator(
    ["strategies", "mpich"],
    lambda values: values["mpich"] is None or "mwms" not in values["strategies"],
    "--mpich is of Horovod, which is not in a job of mwms",
    flag_values=FLAGS,
)
flags.register_multi_flags_validator(
    ["strategies", "launcher"],
    lambda values: values["launcher"] == "horovod" or "horovod" not in values["strategies"],
    "the strategy horovod needs --launcher=horovod",
    flag_values=FLAGS,
)
flags.register_multi_flags_validator(
    ["strategies", "optimizer"],
    lambda values: values["optimizer"] == "sgd" or "mwms" not in values["strategies"],
    "the step without all-reduces in a job of mwms is written for --optimizer=sgd",
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    chosen = tuple(_CHOSEN.value)
    by_tf_config = "mwms" in chosen
    module = "mwms" if by_tf_config else "interleaved"
    try:
        measured = _PLACING.measured(
            module,
            Job,
            by_tf_config=by_tf_config,
            strategies=chosen,
            rounds=_ROUNDS.value,
            turn_steps=_TURN_STEPS.value,
        )
    except WorkersFailedError as error:
        print(f"step_time: {error}", file=sys.stderr)
        return 1
    document = _document(chosen, measured) | {"machine": here, "versions": versions()}
    _PLACING.write(document)
    print(results.notes(document), end="\n\n")
    print(results.table(document, markdown=_MARKDOWN.value))
    return 0


def _network() -> str:
    """Between the workers, in words."""
    if "mwms" in _CHOSEN.value or not _PLACING.has_horovod:
        return _PLACING.network()
    if FLAGS.hosts is None:
        on = "" if FLAGS.mpich is None else "; Horovod on MPICH, through shared memory"
        return f"{_PLACING.network()}{on}"
    return f"{_PLACING.network()}; Horovod on {'Gloo' if FLAGS.mpich is None else 'MPICH'}"


def _document(names: Sequence[str], measured: dict[str, Any]) -> dict[str, Any]:
    """Returns the document, in the requested order, from what the job's workers measured."""
    seconds, horovod = measured["seconds"], measured["settings"]["horovod"]
    better = results.better_horovod(seconds)
    if better is not None:
        variants = {name: seconds[name] for name in seconds if name.startswith("horovod:")}
        horovod |= {"variant": better, "variants": results.summaries(variants)}
        seconds["horovod"] = seconds[better]
    chosen = {name: seconds[name] for name in names}
    return {
        "strategies": results.summaries(chosen),
        "ratios": results.ratios(chosen),
        "rounds": _ROUNDS.value,
        "seconds": seconds,
        "plan": measured["plans"],
        "tuning": measured["tuning"],
        "settings": _PLACING.settings() | {"network": _network()} | measured["settings"],
    }


if __name__ == "__main__":
    app.run(main)
