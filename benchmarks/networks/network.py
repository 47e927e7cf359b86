"""A network's gradient tensors, read from what `benchmarks.networks.make` wrote down."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from tf_libra.internal import validation
from tf_libra.specs.backward_profile import BackwardProfile

FORMAT = "tf-libra network"
VERSION = 1
NAMES = ("vgg16", "resnet152", "xception", "densenet201", "inceptionv4", "bert_base")


@dataclass(frozen=True)
class Tensor:
    """One gradient, and the backward computation that it needs and no gradient before it does.

    Attributes:
      name: of its variable.
      num_bytes: its size, in float32.
      operations: floating-point operations per sample; a multiplication and an addition are two.
      cpu_seconds: measured seconds for the whole of `CpuRun.batch`.
    """

    name: str
    num_bytes: int
    operations: float
    cpu_seconds: float

    def __post_init__(self) -> None:
        validation.text("name", self.name)
        validation.integer("num_bytes", self.num_bytes, 1)
        validation.real("operations", self.operations, minimum=0)
        validation.real("cpu_seconds", self.cpu_seconds, minimum=0)


@dataclass(frozen=True)
class CpuRun:
    """Conditions of a measurement on a CPU.

    Attributes:
      processor: what it ran on, with one intra-op and one inter-op thread.
      tensorflow: its version.
      batch: samples per step.
      steps: measured steps; every op counts with the least time that it took in any of them.
      forward_seconds: forward computation of one step.
      fastest_step_seconds: wall time of the fastest step, forward, backward and the profiler's own.
    """

    processor: str
    tensorflow: str
    batch: int
    steps: int
    forward_seconds: float
    fastest_step_seconds: float


@dataclass(frozen=True)
class Network:
    """A network of the papers.

    Attributes:
      name: what `load` takes.
      title: what papers call it.
      source: where its definition is from.
      sample: one sample of its input, in words.
      forward_operations: floating-point operations of forward computation, per sample.
      cpu: how `cpu_seconds` were measured.
      tensors: its gradients in backward order.
    """

    name: str
    title: str
    source: str
    sample: str
    forward_operations: float
    cpu: CpuRun
    tensors: tuple[Tensor, ...]

    @property
    def backward_operations(self) -> float:
        """Floating-point operations of backward computation, per sample."""
        return sum(tensor.operations for tensor in self.tensors)

    def profile_on_cpu(self) -> BackwardProfile:
        """The profile with the seconds measured on a CPU, at the batch of `cpu`."""
        return self._profile([tensor.cpu_seconds for tensor in self.tensors])

    def profile_at(self, operations_per_second: float, batch: int) -> BackwardProfile:
        """The profile of a processor that does all arithmetic at one rate.

        Args:
          operations_per_second: the rate, greater than 0.
          batch: samples per step, at least 1.

        Raises:
          ValueError: an argument is out of its range.
        """
        scale = _scale(operations_per_second, batch)
        return self._profile([tensor.operations * scale for tensor in self.tensors])

    def forward_seconds_at(self, operations_per_second: float, batch: int) -> float:
        """Seconds of forward computation at one rate; arguments as for `profile_at`."""
        return self.forward_operations * _scale(operations_per_second, batch)

    def _profile(self, seconds: list[float]) -> BackwardProfile:
        return BackwardProfile.from_arrays(
            [tensor.num_bytes for tensor in self.tensors],
            seconds,
            [tensor.name for tensor in self.tensors],
            ["float32"] * len(self.tensors),
        )


@cache
def load(name: str) -> Network:
    """Returns a network by its name, one of `NAMES`.

    Raises:
      ValueError: there is none of this name.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    path = resources.files("benchmarks.networks") / "data" / f"{name}.json"
    return from_json(path.read_text())


def from_json(document: str) -> Network:
    """Reads a network from JSON text; `ValueError` names what is wrong with it."""
    value = validation.keys(
        FORMAT,
        validation.json_document(FORMAT, VERSION, document),
        ("name", "title", "source", "sample", "forward_operations", "cpu", "tensors"),
    )
    fields = tuple(CpuRun.__dataclass_fields__)
    cpu = CpuRun(**validation.keys("cpu", value.pop("cpu"), fields))
    tensors = []
    for index, row in enumerate(validation.sequence("tensors", value.pop("tensors"))):
        entry = validation.sequence(f"tensors[{index}]", row)
        if len(entry) != 4:
            raise ValueError(f"tensors[{index}] must have 4 entries, got {len(entry)}")
        tensors.append(Tensor(*entry))
    return Network(cpu=cpu, tensors=tuple(tensors), **value)


def _scale(operations_per_second: float, batch: int) -> float:
    rate = validation.real("operations_per_second", operations_per_second, above=0)
    return validation.integer("batch", batch, 1) / rate
