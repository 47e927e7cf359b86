"""Sampling plans: varied plans of the trials before a model is fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tf_libra.specs.backward_profile import BackwardProfile, is_rows
from tf_libra.specs.plan import Plan, TensorGroup

# Range of the number of groups of random plans. Small all-reduces do not separate startup from
# transmission.
SAMPLED_GROUPS = (2, 6)
# Sizes of the all-reduces after backward, as shares of all bytes, and the fewest of them at which
# every thread count is measured.
MEASURED_SHARES = (0.5, 0.27, 0.13, 0.07, 0.03)
SIZES_PER_THREADS = 3
# Number of groups of `two_stream_plan`.
TWO_STREAM_GROUPS = 6


@dataclass(frozen=True)
class TensorSpec:
    """Gradient tensor as tracing knows it, without measurements."""

    name: str
    num_bytes: int
    dtype: str


def tensor_specs(profile: BackwardProfile) -> list[TensorSpec]:
    """Returns the tensors of a profile, in the order of production."""
    return [TensorSpec(t.name, t.num_bytes, t.dtype or "") for t in profile.tensors]


def with_row_bytes(
    tensors: Sequence[TensorSpec], row_bytes: Mapping[str, int]
) -> tuple[TensorSpec, ...]:
    """Returns tensors in which rows without a size have that of `row_bytes`, if it is there."""
    return tuple(
        replace(spec, num_bytes=row_bytes.get(spec.name, 0))
        if is_rows(spec.dtype) and spec.num_bytes == 0
        else spec
        for spec in tensors
    )


def plan_with_row_bytes(plan: Plan, row_bytes: Mapping[str, int]) -> Plan:
    """Returns a plan in which rows without a size have that of `row_bytes`, if it is there."""
    specs = map(TensorSpec, plan.tensor_names, plan.num_bytes, plan.dtypes or ())
    sized = with_row_bytes(tuple(specs), row_bytes)
    return replace(plan, num_bytes=tuple(spec.num_bytes for spec in sized)) if sized else plan


def one_group_plan(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, strategy: str
) -> Plan:
    """Returns the plan of one all-reduce after backward, which needs no measurements."""
    return _plan(tensors, [0, len(tensors)], [num_threads], num_workers, strategy)


def one_by_one_plan(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, most: int = 32
) -> Plan:
    """Returns a plan of small all-reduces, which show the startup overhead.

    One per tensor, but at most `most`.
    """
    edges = np.unique(np.linspace(0, len(tensors), min(most, len(tensors)) + 1).astype(int))
    threads = [num_threads] * (len(edges) - 1)
    return _plan(tensors, edges.tolist(), threads, num_workers, "sample")


def two_stream_plan(profile: BackwardProfile, num_threads: int, num_workers: int) -> Plan:
    """Returns equal groups that alternate between two streams, which shows their contention."""
    specs = tensor_specs(profile)
    total = max(int(profile.num_bytes.sum()), 1)
    shares = np.arange(1, TWO_STREAM_GROUPS) / TWO_STREAM_GROUPS
    cuts = np.searchsorted(np.cumsum(profile.num_bytes) / total, shares) + 1
    inner = {int(cut) for cut in cuts if cut < len(specs)}
    edges = [0, *sorted(inner), len(specs)]
    plan = _plan(specs, edges, [num_threads] * (len(edges) - 1), num_workers, "sample")
    groups = (replace(group, stream=i % 2) for i, group in enumerate(plan.groups))
    return replace(plan, groups=tuple(groups))


def measuring_plans(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> list[Plan]:
    """Returns plans of groups of several sizes and all thread counts, reduced after backward.

    All-reduces after backward run one by one, so a step shows several thread counts.
    """
    sizes = np.array([tensor.num_bytes for tensor in tensors], dtype=float)
    before = np.concatenate([[0.0], np.cumsum(sizes)]) / max(sizes.sum(), 1.0)
    plans: dict[str, Plan] = {}
    for index in range(-(-SIZES_PER_THREADS * len(threads) // len(MEASURED_SHARES))):
        # The order of sizes varies by plan, so that no position in a step has a single size.
        shares = np.roll(MEASURED_SHARES, index)
        cuts = {int(np.argmin(np.abs(before - share))) for share in np.cumsum(shares)[:-1]}
        edges = sorted(cuts | {0, len(tensors)})
        # A size gets other threads in every plan.
        sizes_of_groups = [(group - index) % len(shares) for group in range(len(edges) - 1)]
        chosen = [threads[(size + index) % len(threads)] for size in sizes_of_groups]
        plan = _plan(tensors, edges, chosen, num_workers, "measure", after_backward=True)
        plans[plan.fingerprint] = plan
    return list(plans.values())


def random_plans(
    profile: BackwardProfile,
    threads: Sequence[int],
    num_workers: int,
    count: int,
    seed: int = 0,
    num_groups: tuple[int, int] = SAMPLED_GROUPS,
) -> list[Plan]:
    """Returns at most `count` random fusions with random threads (LIBRA, Algorithm 2, line 2).

    The number of groups lies in the range `num_groups`, limited by the number of tensors. The same
    arguments give the same plans.
    """
    random = np.random.default_rng(seed)
    specs = tensor_specs(profile)
    # Cut alternately by tensors and by bytes, since a few tensors may hold most bytes.
    by_bytes = np.cumsum(profile.num_bytes) / max(int(profile.num_bytes.sum()), 1)
    plans: list[Plan] = []
    seen: set[str] = set()
    for index in range(count):
        fewest, most = (min(bound, len(specs)) for bound in num_groups)
        places = random.random(int(random.integers(fewest, most + 1)) - 1)
        cuts = places * len(specs) if index % 2 else np.searchsorted(by_bytes, places)
        inner = {min(max(int(cut), 1), len(specs) - 1) for cut in cuts if len(specs) > 1}
        edges = [0, *sorted(inner), len(specs)]
        # Every thread count leads equally often, so that all are sampled.
        chosen = [int(threads[index % len(threads)])]
        chosen += [int(r) for r in random.choice(threads, size=len(edges) - 2)]
        plan = _plan(specs, edges, chosen, num_workers, "sample")
        # A model with few tensors has few different plans.
        if plan.fingerprint not in seen:
            seen.add(plan.fingerprint)
            plans.append(plan)
    return plans


def _plan(
    tensors: Sequence[TensorSpec],
    edges: Sequence[int],
    threads: Sequence[int],
    num_workers: int,
    strategy: str,
    after_backward: bool = False,
) -> Plan:
    groups = tuple(
        TensorGroup(start, stop, num_threads)
        for start, stop, num_threads in zip(edges[:-1], edges[1:], threads, strict=True)
    )
    return Plan(
        groups=groups,
        tensor_names=tuple(tensor.name for tensor in tensors),
        num_bytes=tuple(tensor.num_bytes for tensor in tensors),
        num_workers=num_workers,
        strategy=strategy,
        after_backward=after_backward,
        dtypes=tuple(tensor.dtype for tensor in tensors),
    )
