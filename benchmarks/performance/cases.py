"""Cases of the goals of performance: models, networks, and how workers are placed."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

STRATEGIES = ("none", "horovod", "syneasgd", "wfbp", "mg-wfbp", "asc-wfbp", "libra-m", "libra")
# TensorFlow's own strategy, whose workers meet without Horovod.
PLAIN = ("none", "one-worker", "mwms", "libra")
# Strategies that are compared with one worker in a job of its own.
ONE_WORKER = ("none", "one-worker", "horovod", "libra")
MODELS = ("cnn5m", "mlp", "transformer")
# Measured against TensorFlow's own strategy alone: its many small gradients are packed there.
OF_PLAIN = ("resnet20",)
# Rates of links as tc writes them; None: the workers are on one host.
RATES = (None, "5gbit", "1gbit")


@dataclass(frozen=True)
class Case:
    """Two workers that train one model.

    Attributes:
        model: see `benchmarks.models`.
        rate: of the links between hosts of one worker each; None on one host.
        pinned: whether every worker has a core of its own and TensorFlow one intra-op thread.
    """

    model: str
    rate: str | None
    pinned: bool

    @property
    def name(self) -> str:
        """Name of the case, also its key: "cnn5m, one host, pinned"."""
        network = "one host" if self.rate is None else f"two hosts at {self.rate}"
        return f"{self.model}, {network}, {'pinned' if self.pinned else 'not pinned'}"

    def commands(self, rounds: int) -> dict[str, list[str]]:
        """Returns the commands that measure it, by benchmark; each writes JSON to `--json`."""
        placed = [f"--model={self.model}"]
        placed += ["--np=2"] if self.rate is None else ["--hosts=2", f"--rate={self.rate}"]
        placed += [] if self.pinned else ["--unpinned"]
        found = {}
        if self.model in MODELS:
            strategies = ",".join(STRATEGIES)
            found["step_time"] = [*placed, f"--rounds={rounds}", f"--strategies={strategies}"]
            # What a plan's step takes is predicted where cores are known. What can be won back of a
            # wire is known where an exchange takes cores for as long as the link.
            if self.pinned and self.rate == "5gbit":
                found["wire"] = [*placed, "--against={step_time}"]
            if self.pinned:
                found["truth"] = placed
            strategies = ",".join(ONE_WORKER)
            found["one_worker"] = [*placed, f"--rounds={rounds}", f"--strategies={strategies}"]
        if self.pinned and self.rate != "1gbit":
            found["plain"] = [*placed, f"--rounds={rounds}", f"--strategies={','.join(PLAIN)}"]
        modules = {"plain": "step_time", "one_worker": "step_time"}
        return {name: _module(modules.get(name, name), flags) for name, flags in found.items()}


def _module(name: str, flags: list[str]) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{name}", *flags]


def all_cases() -> Iterator[Case]:
    """The most telling first, for a measurement that has to end early."""
    for pinned, rate, model in itertools.product((True, False), RATES, MODELS):
        yield Case(model, rate, pinned)
    for rate, model in itertools.product((None, "5gbit"), OF_PLAIN):
        yield Case(model, rate, pinned=True)
