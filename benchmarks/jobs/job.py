"""Jobs of benchmarks, as they are passed to workers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Task:
    """Training task of every worker, common to all benchmarks.

    Attributes:
        model: name or `file.py:function`, see `benchmarks.models`.
        seed: of weights and data, and of what a benchmark draws.
        pinned: whether every worker has cores of its own and TensorFlow as few threads.
        inter_op_threads: of TensorFlow, where it is.
        output: file for rank 0's JSON.
        cores: of every worker, where it is pinned, and intra-op threads of TensorFlow.
        optimizer: name, see `benchmarks.jobs.settings`.
        batch_factor: of the examples per rank, which the model's builder sets.
    """

    model: str
    seed: int
    pinned: bool
    inter_op_threads: int
    output: str
    cores: int = 1
    optimizer: str = "sgd"
    batch_factor: int = 1


@dataclass(frozen=True, kw_only=True)
class Job(Task):
    """Job of every worker of `benchmarks.step_time`.

    Attributes:
        strategies: "none", "one-worker", "horovod" and strategies of tf_libra, see
            `benchmarks.variants`.
        rounds: counted rounds, in each of which the seed draws the order.
        turn_steps: consecutive steps of each strategy in a round.
    """

    strategies: tuple[str, ...]
    rounds: int
    turn_steps: int = 1


@dataclass(frozen=True, kw_only=True)
class TruthJob(Task):
    """Job of every worker of `benchmarks.truth`.

    Attributes:
        plans: how many that tuning has not seen are drawn.
        rounds: untraced steps of each plan, and as many that are traced.
        strategy: which tunes.
    """

    plans: int
    rounds: int
    strategy: str


@dataclass(frozen=True, kw_only=True)
class SecondJob(Task):
    """Job of every worker of `benchmarks.second_job`.

    Attributes:
        changed: the model that is trained second, as `model` is named.
        rounds: steps of each setting that a search has tried, in turns.
    """

    changed: str
    rounds: int


@dataclass(frozen=True, kw_only=True)
class WireJob(Task):
    """Job of every worker of `benchmarks.wire`: exchange gradients without computing them.

    Attributes:
        rounds: exchanges that count.
    """

    rounds: int


@dataclass(frozen=True, kw_only=True)
class BurstsJob(Task):
    """Job of every worker of `benchmarks.bursts`.

    Attributes:
        rounds: in each of which every way has a block, in an order that the seed draws.
        steps: of a block.
        max_amplification: of the bursts.
        max_slowdown: that the background may cost.
        background_seconds: of a block of the background alone.
    """

    rounds: int
    steps: int
    max_amplification: float
    max_slowdown: float
    background_seconds: float


@dataclass(frozen=True, kw_only=True)
class StageOverheadJob(Job):
    """Job of every worker of `benchmarks.stage_overhead`, without other strategies.

    Attributes:
        microbatches: of the step in two stages.
    """

    microbatches: int
