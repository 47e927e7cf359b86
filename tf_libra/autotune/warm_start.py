"""Similarity of jobs, and the plans and settings that a job may start with from another job.

AIACC-Training, section VI: the best setting is kept for a computation graph and a topology, and a
search begins with that of the job that is nearest by graph edit distance.

The model graph has a node for each layer, a run of gradients whose variables share a scope, with
its bytes and their dtype; layers that follow each other in backward order have an edge. The
topology has a node for each worker and an edge between every two, within a host or between hosts.
Changing a node or an edge into another costs how far apart they are, at most 1; adding or removing
one costs 1.

The rate of the network, as measured in all-reduces after backward, makes jobs unlike, too: the best
units and streams for one network are not those for another. The rate counts in addition to the
graphs, in which it is one edge however much it differs.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.internal import validation
from tf_libra.planning.comm_config import CommConfig
from tf_libra.specs.plan import Plan, TensorGroup

# Beyond so many nodes of both graphs together an edit distance does not come to an end in time, and
# features are compared instead.
MAX_NODES = 24
# For all that is kept, together.
MAX_SECONDS = 2.0
_LEAST_SECONDS = 0.01
# The best settings of a search that others begin with: the best for one model is often not the best
# for another, but among the first few.
MAX_SETTINGS = 4
# Of sizes, as binary logarithms, from which two layers have nothing in common.
_FAR_APART = 6.0
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Of rates, as binary logarithms: what two measurements on one network may differ by, and from how
# much more on two networks have nothing in common.
_ALIKE, _FAR_RATES = 0.5, 3.5
# The distance between a known rate and an unknown one.
_UNKNOWN_APART = 0.5


@dataclass(frozen=True)
class LayerSignature:
    """A node of the model graph.

    Attributes:
      num_bytes: of its gradients.
      dtype: of the first of them.
    """

    num_bytes: int
    dtype: str

    def __post_init__(self) -> None:
        validation.integer("num_bytes", self.num_bytes)
        validation.text("dtype", self.dtype)


@dataclass(frozen=True)
class JobSignature:
    """The job that a setting was found for.

    Attributes:
      layers: in backward order, at least one.
      num_workers: N.
      workers_per_host: of them on one host.
      bytes_per_second: that a worker sent in an all-reduce which nothing overlapped, as measured;
        None if unknown.

    Raises:
      ValueError: a field is out of its range.
    """

    layers: tuple[LayerSignature, ...]
    num_workers: int
    workers_per_host: int
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        layers = validation.sequence("layers", self.layers)
        for layer in layers:
            validation.instance("layers", layer, LayerSignature)
        if not layers:
            raise ValueError("layers must hold at least one, got none")
        validation.integer("num_workers", self.num_workers, minimum=1)
        validation.integer("workers_per_host", self.workers_per_host, minimum=1)
        if self.bytes_per_second is not None:
            rate = validation.real("bytes_per_second", self.bytes_per_second, above=0)
            object.__setattr__(self, "bytes_per_second", rate)

    @classmethod
    def of(
        cls, tensors: Sequence[TensorSpec], num_workers: int, workers_per_host: int
    ) -> "JobSignature":
        """Makes the signature of a job from its gradients in backward order."""
        layers = []
        for _, run in itertools.groupby(tensors, key=lambda one: one.name.rpartition("/")[0]):
            of_layer = list(run)
            # Variables without a scope are layers of their own.
            alone = [[one] for one in of_layer] if "/" not in of_layer[0].name else [of_layer]
            layers += [
                LayerSignature(sum(t.num_bytes for t in each), each[0].dtype) for each in alone
            ]
        return cls(tuple(layers), num_workers, workers_per_host)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of both graphs."""
        return len(self.layers) + self.num_workers


@dataclass(frozen=True)
class PlanOutline:
    """The part of a plan that can be applied to other tensors, too.

    Attributes:
      stops: share of all bytes at which each group ends, ascending to 1.
      num_threads: of each.
      streams: of each.

    Raises:
      ValueError: a field is out of its range.
    """

    stops: tuple[float, ...]
    num_threads: tuple[int, ...]
    streams: tuple[int, ...]

    def __post_init__(self) -> None:
        stops = tuple(
            validation.real("stops", x, minimum=0) for x in validation.sequence("stops", self.stops)
        )
        threads = validation.sequence("num_threads", self.num_threads)
        streams = validation.sequence("streams", self.streams)
        if not stops or list(stops) != sorted(stops) or stops[-1] > 1:
            raise ValueError(f"stops must ascend to 1, at least one, got {stops}")
        validation.same_length("num_threads", threads, "stop", len(stops))
        validation.same_length("streams", streams, "stop", len(stops))
        for field, values, least in (("num_threads", threads, 1), ("streams", streams, 0)):
            values = tuple(
                validation.integer(field, one, least, validation.MAX_INT32) for one in values
            )
            object.__setattr__(self, field, values)
        object.__setattr__(self, "stops", stops)

    @classmethod
    def of(cls, plan: Plan) -> "PlanOutline":
        """Makes the outline of a plan."""
        ends = np.cumsum(plan.group_bytes) / max(sum(plan.num_bytes), 1)
        return cls(
            tuple(min(float(end), 1.0) for end in ends),
            tuple(group.num_threads for group in plan.groups),
            tuple(group.stream for group in plan.groups),
        )

    def groups(self, num_bytes: Sequence[int]) -> tuple[TensorGroup, ...]:
        """Groups of whole tensors of these sizes that end as near to the outline's as can be."""
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
class WarmStart:
    """Findings of a job that others may begin with.

    Attributes:
      job: the job that made them.
      strategy: that they were made under.
      outline: of its plan.
      settings: of AIACC's search, the best first; empty where none was made.
    """

    job: JobSignature
    strategy: str
    outline: PlanOutline
    settings: tuple[CommConfig, ...] = ()


@dataclass(frozen=True)
class JobComparison:
    """Comparison of a job with others by graphs, made early since it takes long.

    It needs no rate of the network, which is measured later.

    Attributes:
      known: what the others have found.
      apart: how far the job's graphs are from each of theirs.
    """

    known: tuple[WarmStart, ...]
    apart: tuple[float, ...]

    @classmethod
    def of(
        cls, job: JobSignature, known: Sequence[WarmStart], seconds: float = MAX_SECONDS
    ) -> "JobComparison":
        """Compares graphs, which takes so many seconds at most in all."""
        deadline = time.monotonic() + seconds
        # Edits and features are two scales: where one pair is too large, features for all.
        by_edits = all(_are_small(job, one.job) for one in known)
        apart = []
        for index, one in enumerate(known):
            left = max(deadline - time.monotonic(), _LEAST_SECONDS) / (len(known) - index)
            apart.append(_graphs_apart(job, one.job, left if by_edits else 0.0))
        return cls(tuple(known), tuple(apart))

    def nearest(self, bytes_per_second: float | None) -> WarmStart | None:
        """The one that is nearest on a network of this rate; None where nothing is in common.

        Args:
          bytes_per_second: as measured; None if unknown, and then other jobs' rates do not count.
        """
        found = []
        for index, (one, apart) in enumerate(zip(self.known, self.apart, strict=True)):
            rate = None if bytes_per_second is None else one.job.bytes_per_second
            found.append((_together(apart, _rates_apart(bytes_per_second, rate)), index))
        least, index = min(found, default=(1.0, 0))
        return self.known[index] if least < 1.0 else None


def distance(one: JobSignature, other: JobSignature, seconds: float = MAX_SECONDS) -> float:
    """Returns the distance of two jobs: 0 for equal ones, 1 for jobs with nothing in common.

    The edit distance of both graphs, as a share of what it takes to remove one and add the other;
    what was found when the time was over, which is no less. Of large graphs, without time, and
    where networkx is not installed, how far apart their features are, which is another scale.
    What both have in common by that and by the rates of their networks is the product of both.
    """
    rates = _rates_apart(one.bytes_per_second, other.bytes_per_second)
    return _together(_graphs_apart(one, other, seconds), rates)


def _together(graphs: float, rates: float) -> float:
    return 1 - (1 - graphs) * (1 - rates)


def _graphs_apart(one: JobSignature, other: JobSignature, seconds: float) -> float:
    if replace(one, bytes_per_second=None) == replace(other, bytes_per_second=None):
        return 0.0
    if _are_small(one, other) and seconds > 0:
        try:
            return _edits(one, other, seconds)
        except ImportError:
            pass
    return _features_apart(one, other)


def _rates_apart(one: float | None, other: float | None) -> float:
    """0 for networks that measurement hardly tells apart, 1 for such that are far apart."""
    if one is None and other is None:
        return 0.0
    if one is None or other is None:
        return _UNKNOWN_APART
    apart = abs(math.log2(one / other))
    return min(max(apart - _ALIKE, 0.0) / _FAR_RATES, 1.0)


def _are_small(one: JobSignature, other: JobSignature) -> bool:
    return one.num_nodes + other.num_nodes <= MAX_NODES


def _edits(one: JobSignature, other: JobSignature, seconds: float) -> float:
    import networkx

    total, most = 0.0, 0.0
    for make in (_model_graph, _topology):
        graphs = make(networkx, one), make(networkx, other)
        removed = sum(graph.number_of_nodes() + graph.number_of_edges() for graph in graphs)
        most += removed
        found = networkx.graph_edit_distance(
            *graphs, node_subst_cost=_apart, edge_subst_cost=_apart, timeout=seconds / 2
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


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    if one.get("kind") != other.get("kind"):
        return 1.0
    sizes = one.get("size", 0), other.get("size", 0)
    return min(abs(math.log2((sizes[0] + 1) / (sizes[1] + 1))) / _FAR_APART, 1.0)


def _features_apart(one: JobSignature, other: JobSignature) -> float:
    """Returns the mean distance of features: number and sizes of layers, workers, hosts; 0 to 1."""
    apart = np.abs(_features(one) - _features(other)) / _FAR_APART
    kinds = {layer.dtype for layer in one.layers} == {layer.dtype for layer in other.layers}
    return float(np.mean([*np.minimum(apart, 1.0), 0.0 if kinds else 1.0]))


def _features(job: JobSignature) -> np.ndarray:
    sizes = np.array([layer.num_bytes for layer in job.layers], dtype=float) + 1
    counts = (len(job.layers), job.num_workers, job.workers_per_host)
    return np.log2([*counts, sizes.sum(), *np.quantile(sizes, _QUANTILES)])
