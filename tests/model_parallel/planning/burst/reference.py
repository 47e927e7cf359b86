"""Brute-force search over all plans of a small model, the reference of burst planners.

A model is a link: `None` is an edge, `("chain", links, layers)` has one link more than layers, and
`("block", branches)` holds edges and chains. The whole model is a chain whose first and last links
are unused.
"""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

import tf_libra
from tests.drawing import fractions, pick


def edges_of(link, source, target):
    """Return the edges of a link between two layers."""
    if link is None:
        return [(source, target)]
    if link[0] == "block":
        return [edge for branch in link[1] for edge in edges_of(branch, source, target)]
    _, links, layers = link
    ends = [source, *layers, target]
    return [
        edge
        for inner, pair in zip(links, itertools.pairwise(ends), strict=True)
        for edge in edges_of(inner, *pair)
    ]


def model_edges(model):
    _, links, layers = model
    return [
        edge
        for inner, pair in zip(links[1:-1], itertools.pairwise(layers), strict=True)
        for edge in edges_of(inner, *pair)
    ]


def layers_of(link):
    if link is None:
        return []
    if link[0] == "block":
        return [layer for branch in link[1] for layer in layers_of(branch)]
    return [*link[2], *(layer for inner in link[1] for layer in layers_of(inner))]


def decisions(scaling, link, cap):
    """Return all decisions on a link whose layers may have at most `cap` devices, as dicts.

    The decision of a layer is the position of its device count. The decision of a block is the
    tuple of branches that run in parallel.
    """
    if link is None:
        yield {}
    elif link[0] == "chain":
        allowed = [i for i, count in enumerate(scaling.device_counts) if count <= cap]
        parts = [list(decisions(scaling, inner, cap)) for inner in link[1]]
        for counts in itertools.product(allowed, repeat=len(link[2])):
            own = dict(zip(link[2], counts, strict=True))
            for chosen in itertools.product(*parts):
                yield own | {k: v for part in chosen for k, v in part.items()}
    else:
        branches = link[1]
        movable = [
            b
            for b, branch in enumerate(branches)
            if branch is not None and scaling.move_seconds is not None
        ]
        for size in range(len(branches)):
            for parallel in itertools.combinations(movable, size):
                for widths in itertools.product(scaling.device_counts, repeat=size + 1):
                    if (sum(widths) > cap) if size else (widths[0] != cap):
                        continue
                    caps = dict(zip(parallel, widths[1:], strict=True))
                    parts = [
                        list(decisions(scaling, branch, caps.get(b, widths[0])))
                        for b, branch in enumerate(branches)
                    ]
                    for chosen in itertools.product(*parts):
                        yield {id(link): parallel} | {
                            k: v for part in chosen for k, v in part.items()
                        }


def judge(scaling, model, decision):
    """Return iteration seconds and amplifications of a decision, by the paper's definition.

    A transition occupies the devices of its target layer, which may be those of any lane that joins
    there. It therefore begins when all lanes have ended, after the other transitions.
    """
    entering = [0.0] * scaling.num_layers
    edges = {edge: index for index, edge in enumerate(scaling.edges)}

    def along(link, source, target, left, right):
        """Return the seconds before the target, and the seconds of transitions into the target."""
        if link is None:
            times = scaling.move_seconds if left or right else scaling.transition_seconds
            seconds = times[edges[source, target]][decision[source], decision[target]]
            entering[target] += seconds
            return 0.0, seconds
        if link[0] == "chain":
            _, links, layers = link
            ends = [source, *layers, target]
            clock = comes = 0.0
            for index, inner in enumerate(links):
                if index:
                    clock += comes + own(layers[index - 1])
                seconds, comes = along(
                    inner,
                    ends[index],
                    ends[index + 1],
                    left and index == 0,
                    right and index == len(links) - 1,
                )
                clock += seconds
            return clock, comes
        parallel = decision[id(link)]
        found = [
            along(branch, source, target, left or b in parallel, right or b in parallel)
            for b, branch in enumerate(link[1])
        ]
        together = sum(clock for b, (clock, _) in enumerate(found) if b not in parallel)
        longest = max([together, *(found[b][0] for b in parallel)])
        return longest, sum(comes for _, comes in found)

    def own(layer):
        position = decision[layer]
        return (
            scaling.compute_seconds[layer, position] + scaling.synchronize_seconds[layer, position]
        )

    _, links, layers = model
    total = sum(own(layer) for layer in layers)
    for inner, pair in zip(links[1:-1], itertools.pairwise(layers), strict=True):
        total += sum(along(inner, *pair, False, False))
    amplified = []
    for layer in range(scaling.num_layers):
        used = scaling.device_counts[decision[layer]] * (entering[layer] + own(layer))
        alone = scaling.compute_seconds[layer, 0]
        amplified.append(used / alone if alone else (1.0 if used == 0 else math.inf))
    return total, amplified


def best(scaling, model, limits):
    """Return, per limit, the least largest amplification (or None) and the least seconds."""
    cap = scaling.device_counts[-1]
    judged = []
    for decision in decisions(scaling, model, cap):
        seconds, amplified = judge(scaling, model, decision)
        judged.append((max(amplified), seconds))
    found = []
    for limit in limits:
        within = [seconds for largest, seconds in judged if largest <= limit * (1 + 1e-12)]
        if within:
            found.append((None, min(within)))
        else:
            least = min(largest for largest, _ in judged)
            times = [s for largest, s in judged if largest <= least * (1 + 1e-12)]
            found.append((least, min(times)))
    return found


_SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def chains(draw, max_layers=4):
    """Draw the profile of a chain and its model in the form above."""
    layers = pick(range(1, max_layers + 1), *fractions(draw, 1))
    model = ("chain", [None] * (layers + 1), list(range(layers)))
    return draw(profiles(model, branching=False)), model


@st.composite
def branching(draw):
    """Draw a small model with branches, also nested ones, and its profile."""
    drawn = iter(fractions(draw, 32).tolist())  # more than any model needs
    budget = [pick(range(2, 6), next(drawn))]
    layers = [0]

    def either():
        return next(drawn) >= 0.5

    def layer():
        budget[0] -= 1
        layers[0] += 1
        return layers[0] - 1

    def link(depth):
        if depth == 0 or budget[0] < 1 or either():
            return None
        branches = [chain(depth - 1)]
        for _ in range(pick(range(3), next(drawn))):
            if budget[0] > 0:
                branches.append(chain(depth - 1))
        if len(branches) == 1 or either():
            branches.append(None)
        return ("block", branches)

    def chain(depth):
        inner = [layer()]
        links = [link(depth), link(depth)]
        while budget[0] > 0 and either():
            inner.append(layer())
            links.append(link(depth))
        return ("chain", links, inner)

    first, last = layer(), layer()
    branches = [chain(1)]
    while budget[0] > 0 and len(branches) < 3:
        branches.append(chain(1))
    if len(branches) == 1 or either():
        branches.append(None)
    model = ("chain", [None, ("block", branches), None], [first, last])
    return draw(profiles(model, branching=True)), model


@st.composite
def profiles(draw, model, branching):
    layers = len(layers_of(model))
    most = 3 if layers <= 4 else 2
    drawn = iter(fractions(draw, 9).tolist())

    def one_of(*some):
        return pick(some, next(drawn))

    counts = one_of((1,), (1, 2), (1, 3), (1, 2, 4), (1, 2, 3), (1, 3, 4))[:most]
    G = len(counts)
    edges = model_edges(model)
    rng = np.random.default_rng(draw(_SEEDS))
    grain = one_of(0, 4, 16)  # 0: any number; otherwise few distinct numbers, so ties are common

    def times(*shape, scale=1.0, none=0.0):
        drawn = rng.integers(0, grain + 1, shape) / grain if grain else rng.random(shape)
        return scale * np.where(rng.random(shape) < none, 0.0, drawn)

    alone = times(layers, 1, scale=4.0) + one_of(0.0, 0.25)
    compute = alone / np.array(counts) ** times(layers, 1)
    compute[:, 1:] *= 0.5 + times(layers, G - 1)
    synchronize = times(layers, G, scale=one_of(0.0, 0.3, 2.0))
    if one_of(False, True):
        synchronize[:, 0] = 0
    transition = times(len(edges), G, G, scale=one_of(0.0, 0.5, 3.0), none=0.3)
    if one_of(False, True):
        transition[:, range(G), range(G)] = 0
    move = None
    if branching and one_of(*range(5)):
        move = times(len(edges), G, G, scale=one_of(0.0, 0.5))
    order = rng.permutation(len(edges)).tolist() if branching else range(len(edges))
    return tf_libra.ScalingProfile.graph(
        counts,
        compute,
        synchronize,
        [edges[i] for i in order],
        transition[list(order)],
        None if move is None else move[list(order)],
    )
