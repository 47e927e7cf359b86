"""Cases of workers with several cores each: how cores are divided, links, and benchmarks."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# In one job: each strategy of TF-Libra for data parallelism, and two that all-reduce nothing.
STRATEGIES = (
    *("none", "one-worker", "syneasgd", "wfbp", "horovod-fusion", "mg-wfbp", "asc-wfbp"),
    *("aiacc", "libra-m", "libra"),
)
# By what a reader wants to know first, for a measurement that has to end early.
BENCHMARKS = ("sgd", "truth", "adam")


@dataclass(frozen=True)
class Shape:
    """A division of cores.

    Attributes:
        workers: how many.
        cores: of each worker.
    """

    workers: int
    cores: int


def shapes_of(num_cores: int) -> tuple[Shape, ...]:
    """Returns 2, 4 and 8 workers with an equal share of the cores each, at least one."""
    return tuple(Shape(n, num_cores // n) for n in (2, 4, 8) if num_cores >= n)


def parse_shape(text: str) -> Shape:
    """Returns the shape of a text such as "4x2": 4 workers of 2 cores.

    Raises:
        ValueError: it is none.
    """
    workers, _, cores = text.partition("x")
    if not (workers.isdecimal() and cores.isdecimal() and int(workers) > 1 and int(cores) > 0):
        raise ValueError(f"shapes: must be WORKERSxCORES, such as 4x2, got {text!r}")
    return Shape(int(workers), int(cores))


@dataclass(frozen=True)
class Case:
    """One model on one division of cores.

    Attributes:
        model: see `benchmarks.models`.
        shape: of the workers.
        rate: of the links between hosts of one worker each; None: shared memory of one host.
    """

    model: str
    shape: Shape
    rate: str | None

    @property
    def name(self) -> str:
        """Name of the case, also its key: "cnn5m, 2 workers of 8 cores, shared memory"."""
        link = "shared memory" if self.rate is None else f"links of {self.rate}"
        cores = "1 core" if self.shape.cores == 1 else f"{self.shape.cores} cores"
        model = self.model.rpartition(":")[2]
        return f"{model}, {self.shape.workers} workers of {cores}, {link}"

    def command(
        self, benchmark: str, launcher: str, strategies: Sequence[str], rounds: int, plans: int
    ) -> list[str]:
        """Returns the command of a benchmark, which writes JSON to `--json`.

        Args:
            benchmark: one of `BENCHMARKS`.
            launcher: as of `benchmarks.step_time`.
            strategies: of step times.
            rounds: of steps.
            plans: of predictions.
        """
        workers, cores = self.shape.workers, self.shape.cores
        flags = [f"--model={self.model}", f"--launcher={launcher}", f"--rounds={rounds}"]
        flags += [f"--cores={cores}", f"--inter_op_threads={max(2, cores)}"]
        if self.rate is None:
            flags.append(f"--np={workers}")
        else:
            flags += [f"--hosts={workers}", f"--rate={self.rate}"]
        if benchmark == "truth":
            return [sys.executable, "-m", "benchmarks.truth", *flags, f"--plans={plans}"]
        flags += [f"--optimizer={benchmark}", f"--strategies={','.join(strategies)}"]
        return [sys.executable, "-m", "benchmarks.step_time", *flags]


def all_cases(
    models: Sequence[str], shapes: Sequence[Shape], rates: Sequence[str | None]
) -> Iterator[tuple[Case, str]]:
    """Yields cases and benchmarks, the most telling first."""
    for model in models:
        for benchmark in BENCHMARKS:
            for shape in shapes:
                for rate in rates:
                    yield Case(model, shape, rate), benchmark
