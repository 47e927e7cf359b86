"""Compared cases: four kinds of models, on one host and over links of four kinds."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# What an all-reduce at a time over one connection takes: against it streams and threads are held.
ONE_CONNECTION = "aiacc:streams=1:threads=1"
# Several at a time, each over one connection, as in the paper.
STREAMS = "aiacc:streams=1/2/4:threads=1"
STRATEGIES = (
    "none",
    "one-worker",
    "horovod",
    "mg-wfbp",
    "asc-wfbp",
    "libra",
    "aiacc",
    "auto",
    ONE_CONNECTION,
    STREAMS,
)
MODELS = ("vgg", "resnet20", "transformer", "embedding")


@dataclass(frozen=True)
class Network:
    """Between two workers.

    Attributes:
        name: for a reader.
        flags: of `benchmarks.step_time`.
    """

    name: str
    flags: tuple[str, ...]


NETWORKS = (
    Network("one host", ("--np=2",)),
    Network("5gbit", ("--hosts=2", "--rate=5gbit")),
    Network("1gbit", ("--hosts=2", "--rate=1gbit")),
    # The paper's reason for streams: one connection gets at most 30 % of a link (section III).
    Network("5gbit, 1.5gbit a connection", ("--hosts=2", "--rate=5gbit", "--flow_rate=1500mbit")),
    Network("5gbit, 1gbit a connection", ("--hosts=2", "--rate=5gbit", "--flow_rate=1gbit")),
)


@dataclass(frozen=True)
class Case:
    """Two workers with a core each that train one model.

    Attributes:
        model: see `benchmarks.models`.
        network: between them.
    """

    model: str
    network: Network

    @property
    def name(self) -> str:
        """Name of the case, also its key: "vgg, one host"."""
        return f"{self.model}, {self.network.name}"

    def command(self, rounds: int) -> list[str]:
        """Returns the command that measures the case and writes JSON to `--json`."""
        return [
            *(sys.executable, "-m", "benchmarks.step_time"),
            f"--model={self.model}",
            *self.network.flags,
            f"--rounds={rounds}",
            f"--strategies={','.join(STRATEGIES)}",
        ]


def all_cases() -> Iterator[Case]:
    """One network after the other."""
    for network, model in itertools.product(NETWORKS, MODELS):
        yield Case(model, network)
