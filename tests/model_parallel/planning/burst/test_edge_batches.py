"""Batches of links of one shape, each with the result of the single link."""

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.planning.burst import branch_blocks, deeppool
from tf_libra.model_parallel.planning.burst.edge_batches import Blocks, Chains, Edges, alike, bundle
from tf_libra.model_parallel.planning.burst.graph_reduction import Block, Chain, Edge


def links_of(bundled, index):
    """Return the part of a bundle that belongs to one link."""
    if isinstance(bundled, Edges):
        return Edge(bundled.index[index])
    if isinstance(bundled, Chains):
        links = tuple(links_of(link, index) for link in bundled.links)
        return Chain(tuple(bundled.layers[:, index]), links)
    return Block(tuple(links_of(branch, index) for branch in bundled.branches))


def targets_of(bundled, index):
    """Return the target layers of one link's edges in a bundle."""
    if isinstance(bundled, Edges):
        return [bundled.targets[index]]
    inner = bundled.branches if isinstance(bundled, Blocks) else bundled.links
    return [target for edge in inner for target in targets_of(edge, index)]


def residual(edge, layer):
    """Return an edge parallel to two layers, of which the second is a block by itself."""
    inner = Block((Edge(edge + 1), Chain((layer + 1,), (Edge(edge + 2), Edge(edge + 3)))))
    return Block((Edge(edge), Chain((layer,), (inner, Edge(edge + 4)))))


def test_a_bundle_holds_its_links():
    links = [residual(0, 1), residual(5, 4), residual(10, 7)]
    bundled = bundle(links, np.array([3, 6, 9]))
    for index, link in enumerate(links):
        assert links_of(bundled, index) == link
        first = 3 * index + 1
        assert targets_of(bundled, index) == [first + 2, first, first + 1, first, first + 2]


def test_branches_of_one_shape_are_batched():
    chain = Chain((1,), (Edge(0), Edge(1)))
    nothing = Edge(-1)  # not an edge of the profile, so it has another shape
    links = [Edge(2), residual(0, 1), nothing, Edge(3), chain, residual(5, 4), Edge(4)]
    assert alike(links, 9) == [[0, 3, 6], [1, 5], [2], [4]]
    assert alike(links, 2) == [[0, 3], [6], [1, 5], [2], [4]]
    assert alike([], 2) == []
    # A branch that ends in a block.
    ends = [
        Block((Edge(i), Chain((layer,), (Edge(i + 1), residual(i + 2, layer + 1)))))
        for i, layer in ((0, 1), (10, 5))
    ]
    assert alike(ends, 9) == [[0], [1]]


@st.composite
def repeated(draw):
    """Draw sequential blocks, some of them equal, with branches that end in blocks."""
    counts = draw(st.sampled_from([(1, 2), (1, 2, 4), (1, 2, 3, 6)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.lists(st.integers(0, 3), min_size=2, max_size=5))
    edges, last, layers = [], 0, 1
    for kind in kinds:
        inner = ("block", [None, ("chain", [None, None], [layers + 1])])
        branches = [
            [None, ("chain", [None, None], [layers])],
            [("chain", [None, inner], [layers]), ("chain", [None, None], [layers + 2])],
            [None, ("chain", [inner, None, None], [layers, layers + 2])],
            [("chain", [None, None], [layers + i]) for i in range(3)],
        ][kind]
        link = ("block", branches)
        target = layers + len(reference.layers_of(link))
        edges += reference.edges_of(link, last, target)
        last, layers = target, target + 1
    size = len(counts)

    def times(*shape, scale=1.0):
        # Some times have few distinct values, so that ties are common.
        drawn = rng.integers(1, 5, shape) / 4 if few else rng.random(shape)
        return scale * drawn

    few = draw(st.booleans())
    alone = times(layers, 1)
    compute = alone * (times(layers, 1) / np.array(counts) + 0.05)
    transition, move = (times(len(edges), size, size, scale=0.1) for _ in range(2))
    return tf_libra.ScalingProfile.graph(
        counts, compute, np.zeros((layers, size)), edges, transition, move
    )


@pytest.mark.parametrize("few", [0, branch_blocks._FEW])
@settings(max_examples=40, deadline=None)
@given(repeated())
def test_each_link_is_planned_as_by_itself(few, scaling):
    """Limits include one that no plan keeps."""
    together = deeppool.ExactSearch(scaling)
    with mock.patch.object(deeppool, "_POSITIONS", 1):
        apart = deeppool.ExactSearch(scaling)
    with mock.patch.object(branch_blocks, "_FEW", few):
        for limit in (1.0, 1.5, 2.0, 2.5, 4.0, math.inf):
            assert together.solve(limit) == apart.solve(limit)
            assert together.notes == apart.notes
