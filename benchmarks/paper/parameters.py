"""What the papers' evaluation is computed from: networks as they are trained, and cost models.

`of_libra` and `of_asc_wfbp` derive them from what the papers say; other sets are read from files.
"""

import json
from dataclasses import asdict, dataclass, replace

from scipy.optimize import brentq

import tf_libra
from tf_libra import checks, strategies, zoo

_FORMAT = "tf-libra paper parameters"
_VERSION = 1

# NVIDIA's data sheets: peak single-precision operations per second.
_V100_PEAK = 14.0e12  # Tesla V100 PCIe
_RTX2080TI_PEAK = 13.45e12  # GeForce RTX 2080 Ti


@dataclass(frozen=True)
class Workload:
    """One network as one worker trains it.

    Attributes:
      name: of the network.
      batch: samples per worker and step.
      forward_seconds: forward computation of a step.
      profile: its gradients, with the seconds of backward computation.
      cost: the contention model on the cluster's own number of workers.
    """

    name: str
    batch: int
    forward_seconds: float
    profile: tf_libra.BackwardProfile
    cost: tf_libra.ContentionModel

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        checks.integer("batch", self.batch, 1)
        checks.real("forward_seconds", self.forward_seconds, minimum=0)


@dataclass(frozen=True)
class Parameters:
    """A set of parameters of LIBRA's evaluation.

    Attributes:
      name: of the set, for titles and files.
      sources: where each value is from, one sentence each.
      library_threads: communication threads that the communication library uses by itself.
      threads: R.
      cycle_seconds, buffer_bytes: of Horovod's tensor fusion.
      workloads: the networks.
      max_groups, chunks: K and Z.
    """

    name: str
    sources: tuple[str, ...]
    library_threads: int
    threads: tuple[int, ...]
    cycle_seconds: float
    buffer_bytes: int
    workloads: tuple[Workload, ...]
    max_groups: int = 10
    chunks: int = 150

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        if not self.workloads:
            raise ValueError("workloads must hold at least one network, got none")
        # The strategies check the rest.
        self.strategies()

    def strategies(self) -> dict[str, strategies.Strategy]:
        """The strategies that LIBRA's paper compares, by its names for them."""
        r = self.library_threads
        return {
            "SynEASGD": strategies.SynEasgd(num_threads=r),
            "Horovod": strategies.HorovodFusion(
                num_threads=r, cycle_seconds=self.cycle_seconds, buffer_bytes=self.buffer_bytes
            ),
            "MG-WFBP": strategies.MgWfbp(num_threads=r),
            "LIBRA-M": strategies.LibraM(threads=self.threads, chunks=self.chunks, num_threads=r),
            "LIBRA": strategies.Libra(
                threads=self.threads, max_groups=self.max_groups, chunks=self.chunks
            ),
        }

    def to_json(self) -> str:
        """Returns JSON text that `from_json` reads."""
        value = asdict(self) | {"format": _FORMAT, "version": _VERSION}
        for entry, workload in zip(value["workloads"], self.workloads, strict=True):
            entry["profile"] = json.loads(workload.profile.to_json())
            entry["cost"] = json.loads(workload.cost.to_json())
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, document: str) -> "Parameters":
        """Reads a set; `ValueError` names what is wrong with it."""
        value = checks.keys(
            _FORMAT,
            checks.json_document(_FORMAT, _VERSION, document),
            (
                "name",
                "sources",
                "library_threads",
                "threads",
                "cycle_seconds",
                "buffer_bytes",
                "workloads",
            ),
            ("max_groups", "chunks"),
        )
        workloads = []
        for index, entry in enumerate(checks.sequence("workloads", value.pop("workloads"))):
            field = f"workloads[{index}]"
            keys = ("name", "batch", "forward_seconds", "profile", "cost")
            entry = dict(checks.keys(field, entry, keys))
            try:
                entry["profile"] = tf_libra.BackwardProfile.from_json(json.dumps(entry["profile"]))
                entry["cost"] = tf_libra.ContentionModel.from_json(json.dumps(entry["cost"]))
                workloads.append(Workload(**entry))
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None
        for field in ("sources", "threads"):
            value[field] = checks.sequence(field, value[field])
        return cls(workloads=tuple(workloads), **value)


def sustained_share() -> float:
    """The share of its peak that a GPU sustains, from the one timing that a paper gives.

    ASC-WFBP's paper, section VI-E: the backward computation of ResNet-152 takes 0.182 s for 32
    samples on an RTX 2080 Ti.
    """
    operations = zoo.load("resnet152").backward_operations * 32
    return operations / 0.182 / _RTX2080TI_PEAK


def of_libra() -> Parameters:
    """LIBRA's testbed: 8 nodes, one V100 each, 50 Gb/s RDMA, from what its paper says."""
    rate = sustained_share() * _V100_PEAK
    slowdown = 1.38  # Fig. 1(a): computation beside 2048 threads
    cost = tf_libra.ContentionModel(
        num_workers=8,
        hop_latency=6.6e-6,
        compute=(1.0, (1 - 1 / slowdown) / 2048),
        overlapped=_saturating(0.1),
        exclusive=_saturating(0.1),
    )
    gamma3 = _fit_gamma3(rate, cost)
    cost = replace(cost, overlapped=_saturating(gamma3), exclusive=_saturating(gamma3))
    batches = {"xception": 32, "resnet152": 32, "vgg16": 128, "bert_base": 32}  # Table I
    workloads = []
    for name, batch in batches.items():
        network = zoo.load(name)
        workloads.append(
            Workload(
                network.title,
                batch,
                network.forward_seconds_at(rate, batch),
                network.profile_at(rate, batch),
                cost,
            )
        )
    return Parameters(
        name="LIBRA's testbed",
        sources=(
            "8 workers, K = 10, Z = 150, R = 128, 256, ..., 4096, batches: section V-A and Table I",
            f"computation: {rate / 1e12:.2f} T operations per second, the "
            f"{100 * sustained_share():.0f} % of an RTX 2080 Ti's peak that ASC-WFBP's paper "
            "measured on ResNet-152 (section VI-E), of a V100's peak of 14 T (PCIe; data sheets)",
            "alpha1 = 1, and alpha2 = (1 - 1/1.38)/2048: computation takes 38 % longer beside 2048 "
            "threads (Fig. 1(a))",
            "gamma1 = 6.25 GB/s: the peak bandwidth of 50 Gb/s (section V-A)",
            "gamma2 = gamma1: no threads send nothing",
            f"gamma3 = {gamma3:.3f}: solved for so that ResNet-152 at batch 8, fused as Horovod "
            "does, gets 14 % faster from 128 to 2048 threads (Fig. 1(b))",
            "p = q: the text gives no rate for all-reduces beside computation",
            "6.6 us per hop: NCCL's own figure for rings over a network, simple protocol, in the "
            "first table of latencies in its source (graph/tuning.cc), soon after the paper's "
            "2.4.8",
            "the library's threads: 1024, which the paper does not give; two channels of 512 "
            "threads, the default of NCCL_NTHREADS",
            "Horovod 0.20.3: cycles of 5 ms, a buffer of 64 MiB",
        ),
        library_threads=1024,
        threads=(128, 256, 512, 1024, 2048, 4096),
        cycle_seconds=5e-3,
        buffer_bytes=64 * 2**20,
        workloads=tuple(workloads),
    )


def figure_1b(rate: float, cost: tf_libra.ContentionModel, batch: int) -> float:
    """Backward of ResNet-152 with 2048 threads, over that with 128 (LIBRA, Fig. 1(b))."""
    profile = zoo.load("resnet152").profile_at(rate, batch)
    seconds = []
    for threads in (128, 2048):
        strategy = strategies.HorovodFusion(
            num_threads=threads, cycle_seconds=5e-3, buffer_bytes=64 * 2**20
        )
        seconds.append(tf_libra.make_plan(profile, cost, strategy).predicted_seconds)
    return seconds[1] / seconds[0]


def _fit_gamma3(rate: float, cost: tf_libra.ContentionModel) -> float:
    def excess(gamma3: float) -> float:
        model = replace(cost, overlapped=_saturating(gamma3), exclusive=_saturating(gamma3))
        return figure_1b(rate, model, batch=8) - (1 - 0.14)

    return float(brentq(excess, 0.01, 1.0, xtol=1e-6))


def _saturating(gamma3: float) -> tuple[float, float, float]:
    return 50e9 / 8, 50e9 / 8, gamma3


@dataclass(frozen=True)
class AscWorkload:
    """One network on ASC-WFBP's testbed.

    Attributes:
      name: of the network.
      forward_seconds: forward computation of a step.
      profile: its gradients.
      million_parameters: the size that the paper computes S_max from.
    """

    name: str
    forward_seconds: float
    profile: tf_libra.BackwardProfile
    million_parameters: float


ASC_GAMMA = 1.5
ASC_BANDWIDTH = 9.43e9  # bits per second, of Eq. 43

# Table V's S and Table IV's iteration of ASC-WFBP: S = 32·(t_f + t_b) / iteration.
_ASC_NETWORKS = {
    "resnet152": (16.7, 0.524, 60),
    "densenet201": (22.3, 0.314, 20),
    "inceptionv4": (16.1, 0.377, 42),
    "bert_base": (10.6, 0.924, 110),
}


def asc_cost() -> tf_libra.ContentionModel:
    """ASC-WFBP's cluster: 32 workers; a = 1.4 ms and 1.7 ns per byte (section VI-B)."""
    rate = (2 * 31 / 32 / 1.7e-9, 0.0, 0.0)
    return tf_libra.ContentionModel(32, 1.4e-3 / 62, (1.0, 0.0), rate, rate)


def of_asc_wfbp() -> tuple[AscWorkload, ...]:
    """ASC-WFBP's networks (Table III).

    The paper's t_f + t_b is recovered from its speedup; t_b is twice t_f, as it gives them for
    ResNet-152 (0.091 s and 0.182 s). The arithmetic divides t_b between the tensors.
    """
    workloads = []
    for name, (speedup, iteration, million) in _ASC_NETWORKS.items():
        network = zoo.load(name)
        computation = speedup * iteration / 32
        backward = computation * 2 / 3
        profile = network.profile_at(network.backward_operations / backward, 1)
        workloads.append(AscWorkload(network.title, computation / 3, profile, million))
    return tuple(workloads)
