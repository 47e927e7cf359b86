"""VGG-16 and Inception-v3 as scaling profiles, from the layer times of DeepPool's authors.

What their files lack is in `Parameters`, each with what it is taken from.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tf_libra

_DATA = Path(__file__).parent.parent / "data" / "deeppool_a100.json"
NETWORKS = ("vgg16", "inception_v3")
TITLES = {"vgg16": "VGG-16", "inception_v3": "Inception-v3"}


@dataclass(frozen=True)
class Parameters:
    """Values that the paper and the published times leave out, or give only as a range.

    Attributes:
      bytes_per_second: of a GPU's network. The authors' planner has 266 GB/s for the A100; the
        paper gives the 600 GB/s of NVSwitch, both ways together (Table 2).
      latency_seconds: the propagation delay of one transfer; 40 us in the authors' planner.
      bytes_per_element: of gradients and activations; 4 in the authors' planner.
      memory_bytes_per_second: of the A100-SXM4-40GB (data sheet); what a concatenation takes, which
        the published times lack: its bytes are read and written, forward and backward.
    """

    bytes_per_second: float = 266e9
    latency_seconds: float = 40e-6
    bytes_per_element: int = 4
    memory_bytes_per_second: float = 1555e9


@dataclass
class Layer:
    """One layer: seconds by the samples on a GPU, and what it holds and gives.

    Attributes:
      name: unique.
      seconds: forward and backward by batch, ascending.
      parameters: trained numbers.
      outputs: numbers that it gives per sample.
      after: the layers that it takes from.
    """

    name: str
    seconds: dict[int, float]
    parameters: int
    outputs: int
    after: tuple[int, ...] = field(default=())

    def seconds_at(self, batch: int) -> float:
        """At a number of samples; beyond the largest measured one in proportion to it."""
        if batch in self.seconds:
            return self.seconds[batch]
        largest = max(self.seconds)
        if batch < largest:
            raise ValueError(f"batch must be one of {sorted(self.seconds)}, got {batch}")
        return self.seconds[largest] * batch / largest

    def utilization(self, batch: int) -> float:
        """Samples per second over those of the largest measured batch, at most 1."""
        if not self.seconds_at(batch):
            return 0.0
        largest = max(self.seconds)
        ideal = self.seconds[largest] * batch / largest
        return min(1.0, ideal / self.seconds_at(batch))


def layers(network: str, parameters: Parameters) -> list[Layer]:
    """Returns a network's layers; `network` is of `NETWORKS`."""
    entries = json.loads(_DATA.read_text())[network]
    if network == "vgg16":
        return _vgg16(entries)
    return _inception_v3(entries, parameters)


def profile(
    network: str,
    device_counts: tuple[int, ...],
    batch: int,
    parameters: Parameters | None = None,
) -> tf_libra.ScalingProfile:
    """Returns the scaling profile of a network for a global batch.

    Synchronising takes a layer's bytes over the bandwidth, plus the latency. A transition moves,
    per GPU, the larger of what it gives away and what it gets, forward and backward: nothing
    between equal numbers of GPUs, else what is not there already (as in the authors' planner).
    """
    parameters = Parameters() if parameters is None else parameters
    found = layers(network, parameters)
    counts = np.array(device_counts)
    samples = batch // counts
    compute = [[layer.seconds_at(int(b)) for b in samples] for layer in found]
    synchronize = [
        [_transfer(parameters, layer.parameters) if g > 1 else 0.0 for g in counts]
        for layer in found
    ]
    edges = [(source, i) for i, layer in enumerate(found) for source in layer.after]
    source, target = samples[:, None], samples[None, :]
    # More GPUs after: old ones give away, new ones get all. Fewer: leaving ones give all away.
    changed = np.where(source > target, np.maximum(source - target, target), 0)
    changed = np.where(source < target, np.maximum(source, target - source), changed)
    moved = np.maximum(source, target)
    transition = np.zeros((len(edges), len(counts), len(counts)))
    move = np.zeros_like(transition)
    for index, (i, _) in enumerate(edges):
        for times, amount in ((transition, changed), (move, moved)):
            times[index] = [
                [2 * _transfer(parameters, int(n) * found[i].outputs) for n in row]
                for row in amount
            ]
    return tf_libra.ScalingProfile.graph(
        device_counts,
        compute,
        synchronize,
        edges,
        transition,
        move,
        names=[layer.name for layer in found],
        batch=batch,
    )


def utilization(network: str, plan: tf_libra.BurstPlan, batch: int) -> list[float]:
    """The share of a GPU that each layer occupies under a plan: its throughput over the largest."""
    found = layers(network, Parameters())
    return [
        layer.utilization(batch // count)
        for layer, count in zip(found, plan.num_devices, strict=True)
    ]


def _transfer(parameters: Parameters, elements: int) -> float:
    if not elements:
        return 0.0
    num_bytes = elements * parameters.bytes_per_element
    return num_bytes / parameters.bytes_per_second + parameters.latency_seconds


def _seconds(entry: dict) -> dict[int, float]:
    return {int(b): microseconds * 1e-6 for b, microseconds in entry["microseconds"].items()}


def _num_parameters(entry: dict) -> int:
    settings = entry["parameters"]
    if entry["layer"] == "conv2d":
        kernel = settings["kernel_size"]
        height, width = kernel if isinstance(kernel, list) else (kernel, kernel)
        return (height * width * settings["in_channels"] + 1) * settings["out_channels"]
    if entry["layer"] == "linear":
        return (settings["in_features"] + 1) * settings["out_features"]
    return 0


def _num_outputs(entry: dict) -> int:
    """Numbers per sample that a layer gives."""
    settings = entry["parameters"]
    if entry["layer"] == "linear":
        return settings["out_features"]
    if entry["layer"] not in ("conv2d", "maxPool2d", "avgPool2d"):
        return math.prod(np.atleast_1d(entry["input"]).tolist())
    channels, *sides = entry["input"]
    kernel, padding = settings["kernel_size"], settings["padding"]
    kernels = kernel if isinstance(kernel, list) else (kernel, kernel)
    paddings = padding if isinstance(padding, list) else (padding, padding)
    for axis in (0, 1):
        sides[axis] = (sides[axis] + 2 * paddings[axis] - kernels[axis]) // settings["stride"] + 1
    return settings.get("out_channels", channels) * math.prod(sides)


def _vgg16(entries: list[dict]) -> list[Layer]:
    """The 21 layers of Table 1: a ReLU or flatten is part of the layer that it belongs to."""
    found: list[Layer] = []
    flatten: dict[int, float] | None = None
    counts: dict[str, int] = {}
    for entry in entries:
        seconds = _seconds(entry)
        if entry["layer"].startswith("ReLU"):
            found[-1].seconds = {b: s + seconds[b] for b, s in found[-1].seconds.items()}
            continue
        if entry["layer"] == "flatten":
            flatten = seconds
            continue
        if flatten is not None:
            seconds = {b: s + flatten[b] for b, s in seconds.items()}
            flatten = None
        kind = {"conv2d": "conv", "maxPool2d": "pool", "linear": "dense"}[entry["layer"]]
        counts[kind] = counts.get(kind, 0) + 1
        after = (len(found) - 1,) if found else ()
        found.append(
            Layer(
                f"{kind}{counts[kind]}", seconds, _num_parameters(entry), _num_outputs(entry), after
            )
        )
    return found


# Branches of Inception-v3's blocks, each as the number of its layers in the published order; a pair
# ends in two layers that both take from the one before.
_BLOCKS = (
    *[((1,), (2,), (3,), (2,))] * 3,
    ((1,), (3,), (1,)),
    *[((1,), (3,), (5,), (2,))] * 4,
    ((2,), (4,), (1,)),
    *[((1,), (1, "pair"), (2, "pair"), (2,))] * 2,
)


def _inception_v3(entries: list[dict], parameters: Parameters) -> list[Layer]:
    """Table 1's 119 layers: the 107 of the published times, 11 concatenations, the classifier.

    The classifier's time is not published: VGG-16's last layer, twice as wide, stands for it.
    """
    found: list[Layer] = []
    position = 0

    def add(after: tuple[int, ...], name: str) -> int:
        nonlocal position
        entry = entries[position]
        position += 1
        kind = {"conv2d": "conv", "maxPool2d": "pool", "avgPool2d": "pool"}[entry["layer"]]
        label = f"{name}{kind}{len(found)}"
        found.append(
            Layer(label, _seconds(entry), _num_parameters(entry), _num_outputs(entry), after)
        )
        return len(found) - 1

    last: tuple[int, ...] = ()
    for _ in range(7):
        last = (add(last, "stem/"),)
    for number, branches in enumerate(_BLOCKS):
        ends: list[int] = []
        for length, *pair in branches:
            end = last
            for _ in range(length):
                end = (add(end, f"block{number}/"),)
            if pair:
                ends += [add(end, f"block{number}/") for _ in range(2)]
            else:
                ends += end
        outputs = sum(found[end].outputs for end in ends)
        per_sample = 4 * outputs * parameters.bytes_per_element / parameters.memory_bytes_per_second
        seconds = {b: b * per_sample for b in found[0].seconds}
        found.append(Layer(f"block{number}/concat", seconds, 0, outputs, tuple(ends)))
        last = (len(found) - 1,)
    assert position == len(entries)
    classifier = json.loads(_DATA.read_text())["vgg16"][-1]
    features = 2048  # averaged over the image
    found.append(Layer("dense", _seconds(classifier), (features + 1) * 1000, 1000, last))
    return found
