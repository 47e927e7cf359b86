"""What the workers of benchmarks are told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """What every worker of `benchmarks.step_time` is to do.

    Attributes:
        model: name or `file.py:function`, see `benchmarks.models`.
        strategies: "none", "horovod" and names of tf_libra strategies.
        rounds: counted rounds.
        seed: of weights, data, and the order within each round.
        pinned: whether every worker has one core and TensorFlow as few threads.
        inter_op_threads: of TensorFlow, where it is.
        output: file for rank 0's JSON.
    """

    model: str
    strategies: tuple[str, ...]
    rounds: int
    seed: int
    pinned: bool
    inter_op_threads: int
    output: str


@dataclass(frozen=True)
class TruthJob:
    """What every worker of `benchmarks.truth` is to do.

    Attributes:
        model: name or `file.py:function`, see `benchmarks.models`.
        plans: how many that tuning has not seen are drawn.
        rounds: steps of each plan that nobody traces, and as many that are traced.
        seed: of weights, data, plans, and the order within each round.
        pinned: whether every worker has one core and TensorFlow as few threads.
        inter_op_threads: of TensorFlow, where it is.
        output: file for rank 0's JSON.
    """

    model: str
    plans: int
    rounds: int
    seed: int
    pinned: bool
    inter_op_threads: int
    output: str


@dataclass(frozen=True)
class WireJob:
    """What every worker of `benchmarks.wire` is to do.

    Attributes:
        model: name or `file.py:function`, see `benchmarks.models`; its gradients are exchanged.
        rounds: exchanges that count.
        seed: of the weights, which nobody looks at.
        pinned: whether every worker has one core.
        inter_op_threads: of TensorFlow, which only lets workers meet.
        output: file for rank 0's JSON.
    """

    model: str
    rounds: int
    seed: int
    pinned: bool
    inter_op_threads: int
    output: str
