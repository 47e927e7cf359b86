"""Naive implementations of SPP's definitions, the reference of planners and the simulator."""

import itertools
import math
from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import tf_libra
from tests.drawing import between, fractions, mixed, pick, picks
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

_SECONDS = mixed([0.0], [1.0, 2.0, 3.0, 4.0], between(1e-3, 10))
_BYTES = mixed([0], range(1, 101))
_RATES = mixed([1.0, 2.0, 3.0], between(0.5, 50))


@st.composite
def layer_graphs(draw, max_layers=5, seconds=_SECONDS, num_bytes=_BYTES, shares=False):
    """Draw a chain of layers with values from the arrays `seconds` and `num_bytes`."""
    measured = 3 if shares else 1
    how_many, *drawn = fractions(draw, 1 + (2 * measured + 2) * max_layers)
    count = pick(range(1, max_layers + 1), how_many)
    columns = np.reshape(drawn, (-1, max_layers))[:, :count]
    times = picks(seconds, columns[:-2])
    forward, backward = (np.sort(each, axis=0).T for each in np.split(times, 2))
    parameters, activations = picks(num_bytes, columns[-2:]).tolist()
    if not shares:
        forward, backward = forward[:, 0], backward[:, 0]
    return tf_libra.LayerGraph.chain(
        forward.tolist(),
        backward.tolist(),
        parameters,
        activations[:-1],
        input_shares=(0.25, 0.5, 1) if shares else (),
    )


@st.composite
def clusters(draw, max_devices=4, rates=_RATES, min_devices=1, efficiencies=(1.0,)):
    """Draw a cluster with link rates from the array `rates`."""
    how_many, efficiency, *drawn = fractions(draw, 2 + math.comb(max_devices, 2))
    count = pick(range(min_devices, max_devices + 1), how_many)
    matrix = np.zeros((count, count))
    matrix[np.triu_indices(count, 1)] = picks(rates, np.array(drawn[: math.comb(count, 2)]))
    cluster = tf_libra.Cluster.from_bandwidth((matrix + matrix.T).tolist())
    return replace(cluster, all_reduce_efficiency=pick(efficiencies, efficiency))


def drawn(rng, max_layers, max_devices, working=False):
    """Draw a model and a cluster with a NumPy generator, which is faster than hypothesis.

    Some values have few choices and some are arbitrary, so that ties occur in about half of the
    cases; `working`: every layer takes time.
    """
    count, devices = int(rng.integers(1, max_layers + 1)), int(rng.integers(1, max_devices + 1))
    few = rng.random() < 0.5

    def column(length, low, high):
        values = rng.integers(low, 5, length) if few else rng.uniform(low, high, length)
        return (values * rng.choice([0.1, 1.0, 10.0])).tolist()

    least = 1 if working else 0
    parameters, activations = column(count, 0, 100), column(count - 1, 0, 100)
    for sizes in (parameters, activations):
        if rng.random() < 0.2:
            sizes[:] = [0.0] * len(sizes)
    layers = tf_libra.LayerGraph.chain(
        column(count, least, 10), column(count, least, 10), parameters, activations
    )
    rates = rng.integers(1, 4, (devices, devices)) if few else rng.uniform(0.5, 50, [devices] * 2)
    upper = np.triu(rates.astype(float), 1)
    return layers, tf_libra.Cluster.from_bandwidth(upper + upper.T)


def drawn_plan(rng, layers, cluster):
    """Draw one of `all_plans`, as (start, stop, devices)."""
    count, devices = len(layers.layers), cluster.num_devices
    stages = int(rng.integers(1, min(count, devices) + 1))
    cuts = [0, *sorted(rng.choice(np.arange(1, count), stages - 1, replace=False)), count]
    owners = rng.permutation([*range(stages), *rng.integers(0, stages, devices - stages)])
    return [
        (int(a), int(b), tuple(np.flatnonzero(owners == k).tolist()))
        for k, (a, b) in enumerate(itertools.pairwise(cuts))
    ]


def partitions(num_layers, num_stages):
    """Return all partitions of layers into stages, as lists of (start, stop)."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        cuts = [0, *inner, num_layers]
        yield list(itertools.pairwise(cuts))


def replications(order, num_stages):
    """Return all assignments of consecutive devices of an order to stages."""
    for ranges in partitions(len(order), num_stages):
        yield [tuple(order[a:b]) for a, b in ranges]


def mappings(devices, num_stages):
    """Return all assignments of every device to a stage."""
    for owners in itertools.product(range(num_stages), repeat=len(devices)):
        sets = [
            tuple(d for d, o in zip(devices, owners, strict=True) if o == stage)
            for stage in range(num_stages)
        ]
        if all(sets):
            yield sets


def all_plans(layers, cluster):
    """Return each partition on each mapping of all devices, as lists of (start, stop, devices)."""
    count = len(layers.layers)
    for num_stages in range(1, min(count, cluster.num_devices) + 1):
        for sets in mappings(range(cluster.num_devices), num_stages):
            for ranges in partitions(count, num_stages):
                yield [(a, b, s) for (a, b), s in zip(ranges, sets, strict=True)]


def least_rate(cluster, ones, others):
    rates = [cluster.bytes_per_second[a][b] for a in ones for b in others if a != b]
    return min(rates, default=math.inf)


def over(num_bytes, rate):
    if num_bytes == 0:
        return 0.0
    return math.inf if rate == 0 else num_bytes / rate


def costs(layers, cluster, stages):
    """Return forward, backward and all-reduce seconds by stage, and one-way seconds by channel."""
    computed, reduced, sent = [], [], []
    for start, stop, devices in stages:
        k = len(devices)
        forward, backward = layers.replica_seconds(k)
        computed.append((math.fsum(forward[start:stop]), math.fsum(backward[start:stop])))
        alpha = math.fsum(layer.parameter_bytes for layer in layers.layers[start:stop])
        rate = cluster.all_reduce_efficiency * least_rate(cluster, devices, devices)
        reduced.append(over(2 * (k - 1) * alpha / k, rate) if k > 1 else 0.0)
    for (_, stop, ones), (_, _, others) in itertools.pairwise(stages):
        rate = len(ones) * len(others) * least_rate(cluster, ones, others)
        sent.append(over(layers.activation_bytes[stop - 1], rate))
    return computed, reduced, sent


def bottleneck(layers, cluster, stages, M):
    """Return W of one plan (SPP, section IV-B)."""
    computed, reduced, sent = costs(layers, cluster, stages)
    return max(
        *(M * (f + b) + a for (f, b), a in zip(computed, reduced, strict=True)),
        *(M * 2 * c for c in sent),
        0.0,
    )


def lemma_1(layers, cluster, stages, M):
    """Return the bound of Lemma 1."""
    computed, reduced, sent = costs(layers, cluster, stages)
    largest = max(*(f + b for f, b in computed), *(2 * c for c in sent), 0.0)
    return (M + 4 * len(stages) - 4) * largest + max(reduced)


def phi(layers, cluster):
    """Return Phi of Lemma 2; infinite without computation."""
    rates = [r for a, row in enumerate(cluster.bytes_per_second) for r in row[:a]]
    if not rates or min(rates) == max(rates):
        return 0.0
    p = [layer.forward_seconds + layer.backward_seconds for layer in layers.layers]
    d_max = max((2 * d for d in layers.activation_bytes), default=0.0)
    gamma = sum(p) / cluster.num_devices
    if gamma == 0:
        return math.inf
    return max(max(p) * max(rates), d_max) / gamma * (1 / min(rates) - 1 / max(rates))


def algorithm_1_orders(num_stages, M):
    """Return the orders of lines 1 to 8 with queues, which a pass sees as they are at its start."""
    blocks = [("forward", s) for s in range(num_stages - 1)]
    blocks += [("both", num_stages - 1)]
    blocks += [("backward", s) for s in reversed(range(num_stages - 1))]
    path = []
    for index, block in enumerate(blocks):
        path += [block] if index == 0 else [None, block]  # None: a transfer
    assert len(path) == 4 * num_stages - 3
    queues = [deque(range(M))] + [deque() for _ in path[1:]]
    orders = [[] for _ in range(num_stages)]
    while any(queues):
        heads = [queue[0] if queue else None for queue in queues]
        for j, microbatch in enumerate(heads):
            if microbatch is None:
                continue
            queues[j].popleft()
            if j + 1 < len(path):
                queues[j + 1].append(microbatch)
            if path[j] is not None:
                kind, stage = path[j]
                kinds = ["forward", "backward"] if kind == "both" else [kind]
                orders[stage] += [(kind, microbatch) for kind in kinds]
    return [tuple(order) for order in orders]


def makespan(layers, cluster, stages, orders):
    """Return Eq. 2 for given orders, by relaxing all start times until they are stable.

    All microbatches are equal, so every channel serves them in the order of their indices.
    """
    computed, reduced, sent = costs(layers, cluster, stages)
    last = len(stages) - 1
    ends = {}
    positions = [0] * len(stages)
    clocks = [0.0] * len(stages)
    channels = {}

    def arrival(kind, stage, m):
        """Return the time when a block's input arrives; None if unknown."""
        if kind == "forward":
            if stage == 0:
                return 0.0
            source, channel = ("forward", stage - 1, m), stage - 1
        elif stage == last:
            return ends.get(("forward", stage, m))
        else:
            source, channel = ("backward", stage + 1, m), stage
        if source not in ends:
            return None
        key = (kind, channel, m)
        if key not in channels:
            others = [v for (k, c, _), v in channels.items() if (k, c) == key[:2]]
            channels[key] = max([ends[source], *others]) + sent[channel]
        return channels[key]

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while positions[stage] < len(order):
                kind, m = order[positions[stage]]
                ready = arrival(kind, stage, m)
                if ready is None:
                    break
                seconds = computed[stage][0 if kind == "forward" else 1]
                clocks[stage] = max(clocks[stage], ready) + seconds
                ends[kind, stage, m] = clocks[stage]
                positions[stage] += 1
                moved = True
    if any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        return math.inf
    return max(
        clocks[0],
        *(c + a for c, a, s in zip(clocks, reduced, stages, strict=True) if len(s[2]) > 1),
        0.0,
    )


def interleavings(M):
    """Yield orders of M forwards and M backwards in which each forward precedes its backward."""
    for positions in itertools.combinations(range(2 * M), M):
        order, counts = [], {"forward": 0, "backward": 0}
        for position in range(2 * M):
            kind = "forward" if position in positions else "backward"
            order.append((kind, counts[kind]))
            counts[kind] += 1
            if counts["backward"] > counts["forward"]:
                break
        else:
            yield tuple(order)


def optimum(layers, cluster, M):
    """Return T*, the least iteration time of all plans on all devices, under all orders.

    Microbatches are equal, so exchanging two of them changes nothing. Each block may therefore take
    them in the order of their indices.
    """
    orders = list(interleavings(M))
    best = math.inf
    for least, stages in sorted(
        (busy(layers, cluster, s, M), s) for s in all_plans(layers, cluster)
    ):
        if least >= best:
            break
        for chosen in itertools.product(orders, repeat=len(stages)):
            best = min(best, makespan(layers, cluster, stages, chosen))
    return best


def busy(layers, cluster, stages, M):
    """Return a lower bound for any order: the largest busy time of a stage or channel."""
    computed, reduced, sent = costs(layers, cluster, stages)
    own = (M * (f + b) + a for (f, b), a in zip(computed, reduced, strict=True))
    return max(*own, *(M * c for c in sent), 0.0)


def plan_of(layers, cluster, stages, orders):
    return PipelinePlan(
        tuple(PipelineStage(*stage, order) for stage, order in zip(stages, orders, strict=True)),
        layers.names,
        cluster.num_devices,
        "by hand",
    )


def check_timeline(layers, plan, cluster, timeline):
    """Check a timeline's blocks: kinds, durations, dependencies and exclusive resources.

    Every block starts as soon as its input has arrived and its stage or channel is free.
    """
    stages = [(s.start, s.stop, s.devices) for s in plan.stages]
    computed, reduced, sent = costs(layers, cluster, stages)
    M, last = plan.num_microbatches, len(stages) - 1
    span = {(b.kind, b.stage, b.microbatch): b for b in timeline.blocks}
    expected = {
        (k, s, m) for k in ("forward", "backward") for s in range(last + 1) for m in range(M)
    }
    expected |= {("forward_transfer", s, m) for s in range(last) for m in range(M)}
    expected |= {("backward_transfer", s, m) for s in range(1, last + 1) for m in range(M)}
    expected |= {("all_reduce", s, None) for s in range(last + 1) if len(stages[s][2]) > 1}
    assert span.keys() == expected
    assert len(timeline.blocks) == len(expected)
    scale = 1e-9 * max(timeline.iteration_seconds, 1e-300)

    def same(a, b):
        return abs(a - b) <= scale

    for (kind, stage, microbatch), block in span.items():
        seconds = {
            "forward": lambda s: computed[s][0],
            "backward": lambda s: computed[s][1],
            "forward_transfer": lambda s: sent[s],
            "backward_transfer": lambda s: sent[s - 1],
            "all_reduce": lambda s: reduced[s],
        }[kind](stage)
        assert same(block.stop_seconds - block.start_seconds, seconds)
        if kind == "forward":
            source = ("forward_transfer", stage - 1, microbatch) if stage else None
        elif kind == "backward" and stage < last:
            source = ("backward_transfer", stage + 1, microbatch)
        elif kind == "backward_transfer":
            source = ("backward", stage, microbatch)
        elif kind == "all_reduce":
            ends = max(span["backward", stage, m].stop_seconds for m in range(M))
            assert same(block.start_seconds, ends)
            continue
        else:
            source = ("forward", stage, microbatch)
        ready = span[source].stop_seconds if source else 0.0
        assert block.start_seconds >= ready - scale
        if kind.endswith("transfer"):
            alike = [span[kind, stage, m] for m in range(M)]
            earlier = [
                other
                for other in alike
                if other is not block
                and (other.start_seconds, other.stop_seconds, other.microbatch)
                < (block.start_seconds, block.stop_seconds, microbatch)
            ]
            free = max((other.stop_seconds for other in earlier), default=0.0)
            # In order of readiness.
            begun = kind.removesuffix("_transfer")
            for other in earlier:
                assert span[begun, stage, other.microbatch].stop_seconds <= ready + scale
        else:
            order = plan.stages[stage].order
            position = order.index((kind, microbatch))
            free = 0.0
            if position:
                free = span[order[position - 1][0], stage, order[position - 1][1]].stop_seconds
        assert same(block.start_seconds, max(ready, free))
    ends = [span["backward", 0, m].stop_seconds for m in range(M)]
    ends += [block.stop_seconds for block in timeline.blocks if block.kind == "all_reduce"]
    assert timeline.iteration_seconds == max(ends)
