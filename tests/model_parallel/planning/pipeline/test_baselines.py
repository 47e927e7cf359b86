import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline import GPipe
from tf_libra.model_parallel.planning.pipeline.baselines import (
    balanced_cuts,
    equal_groups,
    nodes_of,
)

many = settings(max_examples=num_examples(200), deadline=None)
NAMES = ("spp", "gpipe", "pipedream", "hetpipe", "data-parallel")


def plan(layers, cluster, strategy, M):
    return tf_libra.make_pipeline_plan(layers, cluster, strategy, num_microbatches=M)


@many
@given(
    st.sampled_from(NAMES), reference.layer_graphs(), reference.clusters(max_devices=6),
    st.integers(1, 8),
)  # fmt: skip
def test_every_plan_follows_all_conventions(name, layers, cluster, M):
    found = plan(layers, cluster, name, M)
    timeline = tf_libra.simulate_pipeline(layers, found, cluster)
    reference.check_timeline(layers, found, cluster, timeline)
    assert found.predicted_seconds == timeline.iteration_seconds


def uniform(count, parameters=1.0, activations=1.0):
    return tf_libra.LayerGraph.chain(
        [1.0] * count, [2.0] * count, [parameters] * count, [activations] * (count - 1)
    )


def servers(sizes, within=100.0, between=10.0, given=False):
    server = np.repeat(np.arange(len(sizes)), sizes)
    rates = np.where(server[:, None] == server, within, between)
    return tf_libra.Cluster.from_bandwidth(rates, server if given else None)


def ranges(found):
    return [(s.start, s.stop) for s in found.stages]


@many
@given(reference.layer_graphs(), reference.clusters(), st.integers(1, 8))
def test_data_parallelism_is_computation_and_equation_1(layers, cluster, M):
    found = plan(layers, cluster, "data-parallel", M)
    V = cluster.num_devices
    devices = tuple(range(V))
    assert [(s.start, s.stop, s.devices) for s in found.stages] == [
        (0, len(layers.layers), devices)
    ]
    computation = M * (layers.forward_seconds.sum() + layers.backward_seconds.sum()) / V
    _, (reduced,), _ = reference.costs(layers, cluster, [(0, len(layers.layers), devices)])
    assert found.predicted_seconds == pytest.approx(computation + reduced)


def test_gpipe_gives_devices_about_as_many_layers():
    found = plan(uniform(7), servers([3]), "gpipe", 4)
    assert ranges(found) == [(0, 3), (3, 5), (5, 7)]
    assert [s.devices for s in found.stages] == [(0,), (1,), (2,)]
    # Surplus devices stay idle.
    assert len(plan(uniform(2), servers([3]), "gpipe", 4).stages) == 2
    assert len(plan(uniform(7), servers([3]), GPipe(num_stages=2), 4).stages) == 2


@many
@given(reference.layer_graphs(), reference.clusters(), st.integers(1, 8))
def test_gpipe_ends_all_forward_before_any_backward(layers, cluster, M):
    for stage in plan(layers, cluster, "gpipe", M).stages:
        assert [kind for kind, _ in stage.order] == ["forward"] * M + ["backward"] * M


@pytest.mark.parametrize("num_stages", [4, 8])
def test_gpipe_cannot_have_more_stages_than_layers_or_devices(num_stages):
    with pytest.raises(ValueError, match="num_stages"):
        plan(uniform(7), servers([3]), GPipe(num_stages=num_stages), 4)


@pytest.mark.parametrize("name", ["pipedream", "hetpipe"])
def test_one_forward_one_backward(name):
    found = plan(uniform(4, parameters=1e6), servers([4]), name, 6)
    words = [" ".join(f"{k[0].upper()}{m}" for k, m in s.order) for s in found.stages]
    assert words[0] == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"
    assert words[3] == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_nodes_are_user_provided_or_guessed():
    assert nodes_of(servers([2, 3])) == ((0, 1), (2, 3, 4))
    assert nodes_of(servers([2, 3], 10, 9)) == ((0, 1, 2, 3, 4),)
    assert nodes_of(servers([2, 3], 10, 9, given=True)) == ((0, 1), (2, 3, 4))
    assert nodes_of(servers([1])) == ((0,),)
    assert nodes_of(tf_libra.Cluster.from_bandwidth(np.zeros((2, 2)))) == ((0, 1),)
    # Device numbers of a node need not be consecutive; fast links define a node.
    rates = [[0, 1, 9, 1], [1, 0, 1, 9], [9, 1, 0, 1], [1, 9, 1, 0]]
    assert nodes_of(tf_libra.Cluster.from_bandwidth(rates)) == ((0, 2), (1, 3))


def test_groups_are_of_one_size():
    assert equal_groups(servers([2, 4, 6])) == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    assert equal_groups(servers([2, 3])) == ((0,), (1,), (2,), (3,), (4,))


def test_hetpipe_is_a_pipeline_per_node():
    found = plan(uniform(6), servers([2, 2, 2]), "hetpipe", 4)
    assert [s.devices for s in found.stages] == [(0, 2, 4), (1, 3, 5)]
    assert ranges(found) == [(0, 3), (3, 6)]
    # With fewer layers than devices per node, the surplus devices stay idle.
    assert [s.devices for s in plan(uniform(1), servers([2, 2]), "hetpipe", 4).stages] == [(0, 2)]


@many
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_cuts_are_balanced(count, num_stages, data):
    num_stages = min(count, num_stages)
    times = data.draw(st.lists(st.floats(0, 10), min_size=count, max_size=count))
    crossing = data.draw(st.lists(st.floats(0, 10), min_size=count - 1, max_size=count - 1))
    table = np.array(
        [[sum(times[a:b]) if b > a else np.inf for b in range(count + 1)] for a in range(count + 1)]
    )

    def largest(cuts):
        return max(
            *(sum(times[a:b]) for a, b in itertools.pairwise(cuts)),
            *(crossing[c - 1] for c in cuts[1:-1]),
            0.0,
        )

    best = min(
        largest([0, *inner, count])
        for inner in itertools.combinations(range(1, count), num_stages - 1)
    )
    cuts = balanced_cuts(table, np.array(crossing), num_stages)
    assert len(cuts) == num_stages + 1 and cuts[0] == 0 and cuts[-1] == count
    assert largest(cuts) == pytest.approx(best)


def pipedream_by_force(layers, groups, within, between, M):
    """Return PipeDream's least largest time: stages of groups, each divided into stages within."""
    p = layers.forward_seconds + layers.backward_seconds

    def stage(a, b, seconds, m, rate):
        return seconds / m + 2 * (m - 1) / m * layers.parameter_bytes[a:b].sum() / rate

    def best(a, b, units, rate, alone):
        found = np.inf
        for num_stages in range(1, min(b - a, units) + 1):
            for cuts in reference.partitions(b - a, num_stages):
                for widths in reference.partitions(units, num_stages):
                    times = [
                        stage(a + i, a + j, alone(a + i, a + j), w - v, rate)
                        for (i, j), (v, w) in zip(cuts, widths, strict=True)
                    ]
                    times += [
                        2 * M * layers.activation_bytes[a + j - 1] / rate for _, j in cuts[:-1]
                    ]
                    found = min(found, max(times))
        return found

    def on_one(a, b):
        return M * p[a:b].sum()

    def on_group(a, b):
        return best(a, b, len(groups[0]), within, on_one)

    return best(0, len(p), len(groups), between, on_group)


@settings(max_examples=num_examples(100), deadline=None)
@given(
    reference.layer_graphs(max_layers=4),
    st.sampled_from([(1, 4), (2, 2), (2, 3), (3, 1), (1, 1)]),
    st.integers(1, 4),
)
def test_pipedream_is_the_optimum_of_its_own_model(layers, shape, M):
    nodes, size = shape
    cluster = servers([size] * nodes, given=True)
    found = plan(layers, cluster, "pipedream", M)
    groups = equal_groups(cluster)
    if nodes == 1:
        groups = tuple((d,) for d in range(size))
        within, between = np.inf, 100.0
    else:
        within, between = 100.0, 10.0
    best = pipedream_by_force(layers, groups, within, between, M)
    assert found.predicted_seconds >= 0
    # The cost of the chosen stages in PipeDream's model.
    p = layers.forward_seconds + layers.backward_seconds
    group_of = {d: g for g, members in enumerate(groups) for d in members}
    outer = [
        (key, list(stages))
        for key, stages in itertools.groupby(
            found.stages, lambda s: frozenset(group_of[d] for d in s.devices)
        )
    ]
    times = []
    for (members, stages), following in itertools.zip_longest(outer, outer[1:]):
        n = len(members)
        inner = []
        for s in stages:
            m = len(s.devices) // n
            sent = 2 * (m - 1) / m * layers.parameter_bytes[s.start : s.stop].sum() / within
            inner.append(M * p[s.start : s.stop].sum() / m + sent)
        inner += [2 * M * layers.activation_bytes[s.stop - 1] / within for s in stages[:-1]]
        sent = layers.parameter_bytes[stages[0].start : stages[-1].stop].sum() / between
        times.append(max(inner) / n + 2 * (n - 1) / n * sent)
        if following is not None:
            times.append(2 * M * layers.activation_bytes[stages[-1].stop - 1] / between)
    assert max(times) == pytest.approx(best, rel=1e-9, abs=1e-12)
