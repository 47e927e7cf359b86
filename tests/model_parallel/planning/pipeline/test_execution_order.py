import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders

many = settings(max_examples=num_examples(500), deadline=None)
few = settings(max_examples=num_examples(100), deadline=None)


@many
@given(st.integers(1, 7), st.integers(1, 40))
def test_orders_are_those_of_algorithm_1(num_stages, M):
    assert execution_orders(num_stages, M) == reference.algorithm_1_orders(num_stages, M)


def test_figure_4():
    """Two stages and six microbatches take ten cycles; stage 0's first backward is in the fifth."""
    first, last = execution_orders(2, 6)
    words = " ".join(f"{kind[0].upper()}{m + 1}" for kind, m in first)
    assert words == "F1 F2 F3 F4 F5 B1 F6 B2 B3 B4 B5 B6"
    assert last == tuple((kind, m) for m in range(6) for kind in ("forward", "backward"))


def check_lemma_1(layers, cluster, stages, M):
    """Check Lemma 1, and that the last stage does not pause within a microbatch."""
    orders = execution_orders(len(stages), M)
    plan = reference.plan_of(layers, cluster, stages, orders)
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    assert timeline.iteration_seconds <= reference.lemma_1(layers, cluster, stages, M) * (1 + 1e-9)
    last = {(b.kind, b.microbatch): b for b in timeline.blocks if b.stage == len(stages) - 1}
    for m in range(M):
        forward, backward = last["forward", m], last["backward", m]
        assert abs(backward.start_seconds - forward.stop_seconds) <= 1e-9 * backward.stop_seconds


@few
@given(st.data(), reference.layer_graphs(), reference.clusters(), st.integers(1, 12))
def test_lemma_1_and_no_pause_of_the_last_stage_within_a_microbatch(data, layers, cluster, M):
    stages = data.draw(st.sampled_from(list(reference.all_plans(layers, cluster))))
    check_lemma_1(layers, cluster, stages, M)


def test_lemma_1_of_two_thousand_random_plans():
    rng = np.random.default_rng(0)
    for _ in range(num_examples(2000)):
        layers, cluster = reference.drawn(rng, max_layers=6, max_devices=6)
        stages = reference.drawn_plan(rng, layers, cluster)
        check_lemma_1(layers, cluster, stages, int(rng.integers(1, 13)))


def test_a_pass_that_sees_its_own_moves_would_break_lemma_1():
    """Such a pass moves a microbatch through all blocks, so stages finish them one by one."""
    layers = tf_libra.LayerGraph.chain([1] * 4, [1] * 4, [0] * 4, [0] * 3)
    cluster = tf_libra.Cluster.from_bandwidth(
        [[0 if a == b else 1 for b in range(4)] for a in range(4)]
    )
    stages = [(k, k + 1, (k,)) for k in range(4)]
    in_turn = tuple((kind, m) for m in range(30) for kind in ("forward", "backward"))
    bound = reference.lemma_1(layers, cluster, stages, 30)

    def seconds(orders):
        plan = reference.plan_of(layers, cluster, stages, orders)
        return tf_libra.simulate_pipeline(layers, plan, cluster).iteration_seconds

    assert seconds([in_turn] * 4) > bound
    assert seconds(execution_orders(4, 30)) <= bound
