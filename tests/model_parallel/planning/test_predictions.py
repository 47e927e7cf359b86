"""The family that `tf-libra compare` chooses, against brute force over all candidates."""

import contextlib
import dataclasses
import io
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.model_parallel.planning.burst import reference as bursts
from tests.model_parallel.planning.pipeline import reference as pipelines
from tf_libra.cli import main
from tf_libra.model_parallel.planning.pipeline import (
    candidate_microbatches,
    make_pipeline_plan,
    possible_microbatches,
)
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.planning.predictions import (
    CALL_SECONDS,
    predict_microbatch,
    predict_pipeline,
    predict_scaling,
)
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow
from tf_libra.runtime.family_prediction import links_of
from tf_libra.runtime.strategy_kinds import Links
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage
from tf_libra.specs.plan import Plan, TensorGroup
from tf_libra.strategies import DeepPool, Spp

DATA_PARALLEL, ALONE = "data parallelism", "one-rank"
THREADS = (1, 2)
BATCH = 24


def draw_layers(
    random: np.random.Generator, num_workers: int, most: int = 3, defers: bool = False
) -> tf_libra.LayerGraph:
    """Draws layers of the joint batch, with a part of their time that every share takes."""
    count = int(random.integers(2, most + 1))
    seconds = 10 ** random.uniform(-3, -1, count)
    fixed = random.uniform(0, 0.5, count)
    share = 1 / num_workers
    rows = [
        [time * (part + (1 - part) * share), time]
        for time, part in zip(seconds, fixed, strict=True)
    ]
    return tf_libra.LayerGraph.chain(
        rows,
        [[2 * time for time in row] for row in rows],
        10 ** random.uniform(3, 8, count),
        10 ** random.uniform(3, 7, count - 1),
        input_shares=(share, 1.0),
        update_seconds=random.uniform(0, 1e-3, count),
        deferred_seconds=seconds * random.uniform(0, 1, count) if defers else None,
    )


def data_parallel_steps(
    profile: tf_libra.BackwardProfile, cost: tf_libra.ContentionModel
) -> list[float]:
    """Returns the step under every plan of consecutive all-reduces."""
    count, found = len(profile.tensors), []
    for number in range(count):
        for cuts in itertools.combinations(range(1, count), number):
            ranges = list(itertools.pairwise((0, *cuts, count)))
            for threads in itertools.product(THREADS, repeat=len(ranges)):
                groups = tuple(
                    TensorGroup(a, b, r) for (a, b), r in zip(ranges, threads, strict=True)
                )
                plan = Plan.for_profile(profile, groups, cost.num_workers, "drawn")
                found.append(tf_libra.simulate(profile, plan, cost).step_seconds)
    return found


def pipeline_steps(
    layers: tf_libra.LayerGraph, links: Links, batch: int
) -> tuple[float, float, int]:
    """Returns the shortest step of all pipelines, and of those that SPP compares, with its M."""
    steps, compared = [], {}
    for count in candidate_microbatches(links.num_ranks, batch):
        found = plans_with_microbatches(layers, links, batch, count)
        steps += found[0]
        compared[count] = min(found[1], default=math.inf)
    best = min(compared, key=lambda count: compared[count])
    return min(steps), compared[best], best


def plans_with_microbatches(
    layers: tf_libra.LayerGraph, links: Links, batch: int, count: int
) -> tuple[list[float], list[float]]:
    """Returns steps of pipelines whose replicas can share microbatches: of all, and of SPP's."""
    microbatch, ranks = predict_microbatch(layers, links, count), links.num_ranks
    cluster = tf_libra.Cluster.from_bandwidth(np.full([ranks] * 2, links.bytes_per_second))
    every = []
    for stages in pipelines.all_plans(microbatch, cluster):
        orders = execution_orders(len(stages), count)
        made = tuple(
            PipelineStage(*stage, order) for stage, order in zip(stages, orders, strict=True)
        )
        every.append(PipelinePlan(made, microbatch.names, ranks, "drawn"))
    least = [
        make_pipeline_plan(microbatch, cluster, Spp(num_stages=k), num_microbatches=count)
        for k in range(1, min(ranks, len(layers.layers)) + 1)
    ]
    calls = 2 * count * CALL_SECONDS
    steps, compared = (
        [
            tf_libra.simulate_pipeline(microbatch, plan, cluster).iteration_seconds + calls
            for plan in plans
            if all(batch % (count * len(stage.devices)) == 0 for stage in plan.stages)
        ]
        for plans in (every, least)
    )
    return steps, compared


def burst_step(layers: tf_libra.LayerGraph, links: Links, batch: int) -> float:
    """Returns the shortest step of all numbers of ranks of each layer."""
    scaling = predict_scaling(DeepPool(), layers, links, batch)
    count = len(layers.layers)
    model = ("chain", [None] * (count + 1), list(range(count)))
    [(_, seconds)] = bursts.best(scaling, model, [float("inf")])
    return float(seconds)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    measured_workers=st.integers(2, 3),
    num_workers=st.integers(2, 3),
    rate=st.floats(1e6, 1e10),
    batch=st.sampled_from([None, 12, 48]),
)
def test_compare_chooses_the_shortest_step_of_all_candidates(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    measured_workers: int,
    num_workers: int,
    rate: float,
    batch: int | None,
) -> None:
    random = np.random.default_rng(seed)
    layers = draw_layers(random, measured_workers, defers=True)
    rates = (1e8, 2e7, 0.5)
    cost = tf_libra.ContentionModel(measured_workers, 1e-5, (1.0, 0.05), rates, rates)
    profile = tf_libra.BackwardProfile.from_arrays(
        layers.parameter_bytes[::-1].astype(int),
        layers.replica_seconds(measured_workers)[1][::-1],
    )
    rest_seconds = float(layers.replica_seconds(measured_workers)[0].sum())
    profile = dataclasses.replace(profile, rest_seconds=rest_seconds)
    names = (DATA_PARALLEL, ALONE, "spp", "deeppool")
    saved = FamilyComparison(
        measured_workers, tuple(map(FamilyRow, names)), num_threads=1, batch=BATCH, layers=layers
    )
    folder = tmp_path_factory.mktemp("logdir")
    for name, document in (("profile", profile), ("cost_model", cost), ("families", saved)):
        (folder / f"{name}.json").write_text(document.to_json())
    flags = [f"--rate={rate:.6g}", f"--workers={num_workers}", "--threads=1,2", "--num_threads=1"]
    flags += [] if batch is None else [f"--batch={batch}"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        given_files = [f"--profile={folder}", f"--cost={folder}"]
        assert main(["compare", *given_files, *flags, "--exact", "--json"]) == 0
    found = json.loads(printed.getvalue())
    families = FamilyComparison.from_document(found["families"])
    seconds = {row.name: row.predicted_seconds for row in families.rows}

    # The same, by definition.
    joint = BATCH * num_workers / measured_workers if batch is None else batch
    factor = joint / BATCH
    there = cost.with_workers(num_workers)
    there = there.with_link_rate(float(f"{rate:.6g}") / float(there.exclusive_rate(1)))
    links = links_of(there, 1)
    assert links.bytes_per_second == pytest.approx(rate, rel=1e-3)
    scaled = layers.with_batch(factor, num_workers)
    per_worker = factor * measured_workers / num_workers
    near = profile.with_batch(per_worker)
    assert near.rest_seconds is not None
    others = {"asc-wfbp", "aiacc", "dear"}  # also all-reduces side by side, or in halves
    steps = data_parallel_steps(near, there)
    data_parallel = near.rest_seconds + min(steps)
    concurrent = min(
        row["whole_step_seconds"] for row in found["strategies"] if row["strategy"] in others
    )
    pipeline, bottlenecks, count = pipeline_steps(scaled, links, round(joint))
    together = scaled.without_deferred()
    expected = {
        DATA_PARALLEL: min(data_parallel, concurrent),
        ALONE: float(
            (together.forward_seconds + together.backward_seconds + together.update_seconds).sum()
        ),
        "spp": bottlenecks,
        "deeppool": burst_step(scaled, links, round(joint)),
    }
    assert seconds == pytest.approx(expected, rel=1e-3)
    [arguments] = [row.arguments for row in families.rows if row.name == "spp"]
    predicted = predict_pipeline(Spp(), scaled, links, round(joint))
    chosen = predicted.arguments["num_microbatches"]
    assert arguments == f"num_microbatches={chosen}"
    alike = plans_with_microbatches(scaled, links, round(joint), chosen)[1]
    assert chosen == count or min(alike) == pytest.approx(bottlenecks, rel=1e-6)
    assert pipeline <= bottlenecks * (1 + 1e-9)
    assert seconds[families.active] <= min(expected.values()) * 1.001
    assert families.one_worker is not None
    several = min(value for name, value in seconds.items() if name != ALONE)
    assert families.one_worker.speedup == pytest.approx(seconds[ALONE] / several)


def test_pipelines_of_spp_are_mostly_the_shortest_of_all() -> None:
    """SPP compares the least bottleneck of each number of stages, which may fill more slowly.

    The docs state how often, and by how much.
    """
    ratios = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        num_workers = int(random.integers(2, 4))
        layers = draw_layers(random, num_workers, most=6)
        links = Links(num_workers, 10 ** random.uniform(6, 10), 1e-4, 1e-5)
        count = possible_microbatches(num_workers, BATCH)
        shortest, least_bottleneck = map(min, plans_with_microbatches(layers, links, BATCH, count))
        assert shortest <= least_bottleneck * (1 + 1e-9)
        ratios.append(least_bottleneck / shortest)
    assert np.quantile(ratios, 0.85) < 1 + 1e-9 and max(ratios) < 1.25
