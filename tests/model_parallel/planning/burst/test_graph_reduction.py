"""Reduced graphs contain each layer and edge of the graph exactly once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.model_parallel.planning.burst.graph_reduction import Block, Chain, Edge, reduce_graph


def layers_of(link):
    if isinstance(link, Edge):
        return []
    if isinstance(link, Chain):
        inner = [layer for inner_link in link.links for layer in layers_of(inner_link)]
        return [*link.layers, *inner]
    return [layer for branch in link.branches for layer in layers_of(branch)]


def edges_of(link):
    if isinstance(link, Edge):
        return [link.index]
    inner = link.links if isinstance(link, Chain) else link.branches
    return [index for inner_link in inner for index in edges_of(inner_link)]


def series_parallel(rng, size):
    """Return the edges of a random graph of blocks, with layers numbered in topological order."""
    count, edges = 2, [(0, 1)]
    for _ in range(size):
        source, target = rng.choice(edges)
        count += 1
        new = count - 1
        if rng.random() < 0.5:
            edges.remove((source, target))  # insert a layer in series instead of in parallel
        edges += [(source, new), (new, target)]
    order, waiting = [], set(range(count))
    while waiting:
        free = [n for n in waiting if all(s not in waiting for s, t in edges if t == n)]
        order.append(rng.choice(sorted(free)))
        waiting.remove(order[-1])
    position = {layer: index for index, layer in enumerate(order)}
    edges = [(position[source], position[target]) for source, target in edges]
    rng.shuffle(edges)
    return count, edges


@settings(max_examples=num_examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_everything_is_there_once(rng, size):
    count, edges = series_parallel(rng, size)
    first, last, link = reduce_graph(count, edges, [str(i) for i in range(count)])
    assert (first, last) == (0, count - 1)
    assert sorted([first, last, *layers_of(link)]) == list(range(count))
    assert sorted(edges_of(link)) == list(range(len(edges)))
    again = reduce_graph(count, edges, [])
    assert again == (first, last, link)


def test_one_layer_has_no_link():
    assert reduce_graph(1, [], ["a"]) == (0, 0, None)


def test_several_ends_are_joined():
    first, last, link = reduce_graph(3, [(0, 2), (1, 2)], "abc")
    assert (first, last) == (3, 2)
    assert isinstance(link, Block)
    assert [branch.layers for branch in link.branches] == [(0,), (1,)]
    first, last, link = reduce_graph(3, [(0, 1), (0, 2)], "abc")
    assert (first, last) == (0, 4)
    assert sorted(edges_of(link)) == [-1, -1, 0, 1]


def test_branches_that_do_not_join_as_they_parted_are_named():
    # The smallest graph that does not consist of blocks.
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    with pytest.raises(ValueError, match=r"these.*c$"):
        reduce_graph(4, edges, "abcd")
    many = [(0, i) for i in range(1, 9)] + [(i, j) for i in range(1, 9) for j in (9, 10)]
    random.Random(0).shuffle(many)
    with pytest.raises(ValueError, match=r"and \d+ more$"):
        reduce_graph(12, [*many, (9, 11), (10, 11)], [str(i) for i in range(12)])
