"""Warm start: plans and settings of similar jobs, and the similarity of jobs.

AIACC-Training, section VI: the best setting is stored for a computation graph and a topology; a
search starts with the setting of the job with the least graph edit distance.

The model graph has a node for each layer (a run of gradients whose variables share a scope), with
its bytes and dtype; layers that are adjacent in backward order have an edge. The topology has a
node for each worker and an edge between every two, within a host or between hosts. Substituting a
node or an edge costs their difference, at most 1; adding or removing one costs 1.

The measured rate of the network also separates jobs, since the best units and streams depend on
it. It is combined with the distance of the graphs, in which a network is a single edge.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import (
    Count,
    Int32,
    Int32Counts,
    Natural,
    NonNegative,
    Positive,
    Value,
)
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.specs.plan import Plan, TensorGroup

# Graphs with more nodes in total are compared by features: their edit distance takes too long.
MAX_NODES = 24
# Time limit of the comparison with all stored jobs.
MAX_SECONDS = 2.0
_MIN_SECONDS = 0.01
# Number of stored settings: the best for one model is often second or third for another.
MAX_SETTINGS = 4
# Binary logarithm of the ratio of sizes at which two layers have distance 1.
_SIZE_RANGE = 6.0
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Binary logarithms of the ratio of rates: measurement error, and range beyond it up to distance 1.
_RATE_ERROR, _RATE_RANGE = 0.5, 3.5
# Distance between a known rate and an unknown one.
_UNKNOWN_RATE_DISTANCE = 0.5


@dataclass(frozen=True)
class LayerSignature(Value):
    """Node of the model graph.

    Attributes:
      num_bytes: bytes of the layer's gradients.
      dtype: dtype of the first of them.
    """

    num_bytes: Natural
    dtype: str


@dataclass(frozen=True)
class JobSignature(Value):
    """Description of a job, for comparison with others.

    Attributes:
      layers: layers in backward order, at least one.
      num_workers: number of workers.
      workers_per_host: number of workers on one host.
      bytes_per_second: measured send rate of a worker in an all-reduce without overlap; None if
        unknown.

    Raises:
      ValueError: a field is out of its range.
    """

    layers: tuple[LayerSignature, ...]
    num_workers: Count
    workers_per_host: Count
    bytes_per_second: Positive | None = None

    SPARSE: ClassVar = ("bytes_per_second",)

    def _validate(self) -> None:
        if not self.layers:
            raise ValueError("layers must hold at least one layer, got none")

    @classmethod
    def from_tensors(
        cls, tensors: Sequence[TensorSpec], num_workers: int, workers_per_host: int
    ) -> "JobSignature":
        """Makes the signature of a job from its gradients in backward order."""
        layers = []
        for _, run in itertools.groupby(tensors, key=lambda spec: spec.name.rpartition("/")[0]):
            in_scope = list(run)
            # A variable without a scope is a layer.
            split = [[spec] for spec in in_scope] if "/" not in in_scope[0].name else [in_scope]
            layers += [
                LayerSignature(sum(spec.num_bytes for spec in layer), layer[0].dtype)
                for layer in split
            ]
        return cls(tuple(layers), num_workers, workers_per_host)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of both graphs."""
        return len(self.layers) + self.num_workers


@dataclass(frozen=True)
class PlanOutline(Value):
    """Part of a plan that applies to other tensors as well.

    Attributes:
      stops: share of all bytes at which each group ends, ascending to 1.
      num_threads: threads of each group.
      streams: stream of each group.

    Raises:
      ValueError: a field is out of its range.
    """

    stops: tuple[NonNegative, ...]
    num_threads: Int32Counts
    streams: tuple[Int32, ...]

    def _validate(self) -> None:
        stops = self.stops
        if not stops or list(stops) != sorted(stops) or stops[-1] > 1:
            raise ValueError(f"stops must ascend to 1, at least one, got {stops}")
        validation.same_length("num_threads", self.num_threads, "stop", len(stops))
        validation.same_length("streams", self.streams, "stop", len(stops))

    @classmethod
    def from_plan(cls, plan: Plan) -> "PlanOutline":
        """Makes the outline of a plan."""
        ends = np.cumsum(plan.group_bytes) / max(sum(plan.num_bytes), 1)
        return cls(
            tuple(min(float(end), 1.0) for end in ends),
            tuple(group.num_threads for group in plan.groups),
            tuple(group.stream for group in plan.groups),
        )

    def groups(self, num_bytes: Sequence[int]) -> tuple[TensorGroup, ...]:
        """Returns groups of whole tensors that end as near as possible to the outline's groups."""
        before = np.concatenate([[0.0], np.cumsum(num_bytes)]) / max(sum(num_bytes), 1)
        groups, start = [], 0
        for index, share in enumerate(self.stops):
            is_last = index == len(self.stops) - 1
            stop = len(num_bytes) if is_last else int(np.argmin(np.abs(before - share)))
            if stop > start:
                groups.append(
                    TensorGroup(start, stop, self.num_threads[index], self.streams[index])
                )
                start = stop
        return tuple(groups)


@dataclass(frozen=True)
class WarmStart(Document):
    """Result of a job that similar jobs may start with.

    Attributes:
      job: job that was tuned.
      strategy: name of its strategy.
      outline: outline of its plan.
      settings: best settings of its search, the best first; empty without a search.
    """

    job: JobSignature
    strategy: str
    outline: PlanOutline
    settings: tuple[CommConfig, ...] = ()

    FORMAT: ClassVar = "tf-libra start"

    @classmethod
    def from_fields(cls, name: str, fields: Any) -> "WarmStart":
        """Builds a result from its JSON values; a `ValueError` names the field that is wrong."""
        fields = dict(validation.mapping(name, fields))
        setting = fields.pop("setting", None)
        if setting is not None:  # earlier versions stored the best setting alone
            fields["settings"] = [setting]
        return super().from_fields(name, fields)


@dataclass(frozen=True)
class JobComparison:
    """Graph distances of a job to others, computed early since they take long.

    The rate of the network is measured later.

    Attributes:
      known: results of the other jobs.
      distances: distance between the job's graphs and those of each other job.
    """

    known: tuple[WarmStart, ...]
    distances: tuple[float, ...]

    @classmethod
    def compare(
        cls, job: JobSignature, known: Sequence[WarmStart], seconds: float = MAX_SECONDS
    ) -> "JobComparison":
        """Compares graphs within a time limit, `seconds` for all jobs together."""
        deadline = time.monotonic() + seconds
        # Edits and features are different scales: use features for all if one pair is too large.
        by_edits = all(_are_small(job, other.job) for other in known)
        distances = []
        for index, other in enumerate(known):
            left = max(deadline - time.monotonic(), _MIN_SECONDS) / (len(known) - index)
            distances.append(_graph_distance(job, other.job, left if by_edits else 0.0))
        return cls(tuple(known), tuple(distances))

    def nearest(self, bytes_per_second: float | None) -> WarmStart | None:
        """Returns the result of the most similar job; None if all are at distance 1.

        Args:
          bytes_per_second: measured rate of the network; None if unknown, to ignore the rates.
        """
        found = []
        for index, (other, graphs) in enumerate(zip(self.known, self.distances, strict=True)):
            rate = None if bytes_per_second is None else other.job.bytes_per_second
            found.append((_combined(graphs, _rate_distance(bytes_per_second, rate)), index))
        least, index = min(found, default=(1.0, 0))
        return self.known[index] if least < 1.0 else None


def distance(job: JobSignature, other: JobSignature, seconds: float = MAX_SECONDS) -> float:
    """Returns the distance of two jobs: 0 for equal jobs, 1 for jobs with nothing in common.

    The graph distance is the edit distance, relative to removing one job's graphs and adding the
    other's; an upper bound if the time runs out. For large graphs, without time, or without
    networkx it is a distance of features instead, on another scale. The similarities (1 - distance)
    by graphs and by network rates are multiplied.
    """
    rates = _rate_distance(job.bytes_per_second, other.bytes_per_second)
    return _combined(_graph_distance(job, other, seconds), rates)


def _combined(graphs: float, rates: float) -> float:
    return 1 - (1 - graphs) * (1 - rates)


def _graph_distance(job: JobSignature, other: JobSignature, seconds: float) -> float:
    if replace(job, bytes_per_second=None) == replace(other, bytes_per_second=None):
        return 0.0
    if _are_small(job, other) and seconds > 0:
        try:
            return _edit_distance(job, other, seconds)
        except ImportError:
            pass
    return _feature_distance(job, other)


def _rate_distance(rate: float | None, other: float | None) -> float:
    """Returns 0 for rates within measurement error, up to 1 for very different networks."""
    if rate is None and other is None:
        return 0.0
    if rate is None or other is None:
        return _UNKNOWN_RATE_DISTANCE
    difference = abs(math.log2(rate / other))
    return min(max(difference - _RATE_ERROR, 0.0) / _RATE_RANGE, 1.0)


def _are_small(job: JobSignature, other: JobSignature) -> bool:
    return job.num_nodes + other.num_nodes <= MAX_NODES


def _edit_distance(job: JobSignature, other: JobSignature, seconds: float) -> float:
    import networkx

    total, most = 0.0, 0.0
    for make in (_model_graph, _topology):
        graphs = make(networkx, job), make(networkx, other)
        removed = sum(graph.number_of_nodes() + graph.number_of_edges() for graph in graphs)
        most += removed
        found = networkx.graph_edit_distance(
            *graphs,
            node_subst_cost=_substitution_cost,
            edge_subst_cost=_substitution_cost,
            timeout=seconds / 2,
        )
        total += removed if found is None else min(found, removed)
    return total / most


def _model_graph(networkx: Any, job: JobSignature) -> Any:
    graph = networkx.path_graph(len(job.layers))
    for index, layer in enumerate(job.layers):
        graph.nodes[index].update(kind=layer.dtype, size=layer.num_bytes)
    return graph


def _topology(networkx: Any, job: JobSignature) -> Any:
    graph = networkx.complete_graph(job.num_workers)
    for a, b in graph.edges:
        same = a // job.workers_per_host == b // job.workers_per_host
        graph.edges[a, b]["kind"] = "host" if same else "network"
    return graph


def _substitution_cost(node: dict[str, Any], other: dict[str, Any]) -> float:
    if node.get("kind") != other.get("kind"):
        return 1.0
    sizes = node.get("size", 0), other.get("size", 0)
    return min(abs(math.log2((sizes[0] + 1) / (sizes[1] + 1))) / _SIZE_RANGE, 1.0)


def _feature_distance(job: JobSignature, other: JobSignature) -> float:
    """Returns the mean distance of features (layers, sizes, workers, hosts), from 0 to 1."""
    differences = np.abs(_features(job) - _features(other)) / _SIZE_RANGE
    same_dtypes = {layer.dtype for layer in job.layers} == {layer.dtype for layer in other.layers}
    return float(np.mean([*np.minimum(differences, 1.0), 0.0 if same_dtypes else 1.0]))


def _features(job: JobSignature) -> np.ndarray:
    sizes = np.array([layer.num_bytes for layer in job.layers], dtype=float) + 1
    counts = (len(job.layers), job.num_workers, job.workers_per_host)
    return np.log2([*counts, sizes.sum(), *np.quantile(sizes, _QUANTILES)])
