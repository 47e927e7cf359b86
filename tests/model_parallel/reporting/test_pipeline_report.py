"""A pipeline in words: whole, and in lines that fit."""

from dataclasses import replace

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.internal import formatting
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers
from tf_libra.model_parallel.reporting.pipeline_report import (
    compare_with_one_worker,
    describe_measured,
    explained,
    in_a_line,
)
from tf_libra.model_parallel.reporting.plan_records import PipelineRecord
from tf_libra.model_parallel.simulation.pipeline_gantt import LEGEND

LONG = tuple(f"a_scope_that_all_layers_are_in/another/block_{i}/kernel" for i in range(6))
NOTE = " ".join(f"word{i}" for i in range(60))


def text_of(record: PipelineRecord, is_measured: bool, num_groups: tuple[int, ...] = ()) -> str:
    measured = MeasuredLayers(record.bars, record.seconds) if is_measured else None
    how = (record.layers, record.cluster, measured, num_groups)
    return explained("train_step", record.plan, *how)


def words(text: str) -> str:
    """Without what puts it into lines and columns."""
    return "".join(text.split())


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize(("names", "ranks"), [((), 2), (LONG, 2), (LONG, 24)])
def test_lines_fit_and_nothing_is_left_out_for_it(names, ranks, is_measured) -> None:
    record = examples.pipeline_record(names=names, ranks=ranks)
    record = replace(record, plan=replace(record.plan, notes=(NOTE,)))
    text = text_of(record, is_measured)
    assert max(map(len, text.splitlines())) <= 100
    assert words(NOTE) in words(text)
    assert text.splitlines()[0] == "train_step: a pipeline of 2 stages under spp, 4 microbatches"
    _, _, reported = in_a_line(record.plan).partition(": ")
    for number, stage in enumerate(reported.split("; ")):
        assert f"\n{number:>5}  " in text and words(stage) in words(text)
    assert LEGEND in text
    lines = text.splitlines()
    for rank in range(ranks):
        charts = [line for line in lines if line.startswith(f"rank {rank:<4} ")]
        assert sum(" computes nothing for " not in line for line in charts) == 1 + is_measured
    assert ("measured" in text) == is_measured


def test_one_worker_computes_all_microbatches_and_updates_once() -> None:
    record = examples.pipeline_record()
    layers = replace(
        record.layers,
        layers=tuple(replace(layer, update_seconds=0.25) for layer in record.layers.layers),
    )
    each = sum(layer.forward_seconds + layer.backward_seconds for layer in layers.layers)
    alone = record.plan.num_microbatches * each + 0.25 * len(layers.layers)
    compared = compare_with_one_worker(record.plan, layers, 2 * alone)
    assert compared is not None and compared.is_slower
    assert compared.speedup == pytest.approx(0.5)
    text = explained("step", record.plan, layers, record.cluster, compared=compared)
    assert text.splitlines()[1].startswith("one worker: ")
    assert words(compared.describe()) in words(text)
    assert max(map(len, text.splitlines())) <= 100
    (first, *_), count = record.plan.stages, len(record.plan.layer_names)
    single = replace(record.plan, num_devices=1, stages=(replace(first, stop=count, devices=(0,)),))
    assert compare_with_one_worker(single, layers, 1.0) is None


def test_line_names_the_layers_of_each_rank() -> None:
    record = examples.pipeline_record(ranks=4)
    assert in_a_line(record.plan) == (
        f"a pipeline of 2 stages, 4 microbatches, predicted"
        f" {formatting.time(record.plan.predicted_seconds)}:"
        " block_0 to block_2 on ranks 0, 1; block_3 to block_5 on ranks 2, 3"
    )
    alone = examples.replicas_record().plan
    assert in_a_line(alone).startswith(f"data parallelism, {alone.num_microbatches} microbatches")


def test_measured_times_stand_next_to_predicted_ones() -> None:
    record = examples.pipeline_record()
    both = formatting.time(record.seconds), formatting.time(record.plan.predicted_seconds)
    reported = describe_measured(record.plan, MeasuredLayers(record.bars, record.seconds))
    assert reported == "an iteration takes {}; predicted: {}".format(*both)
    text = text_of(record, is_measured=True)
    assert "measured iteration: {}, predicted: {}".format(*both) in text
    # On one scale: the shorter of both ends before the other.
    ends = [len(line) for line in text.splitlines() if line.startswith("rank 0    ")]
    assert len(ends) == 2 and ends[0] < ends[1] <= 100


def test_stages_that_all_reduce_in_groups_are_named() -> None:
    text = text_of(examples.pipeline_record(ranks=4), False, (3, 0))
    assert "stage 0 all-reduces its gradients in 3 groups" in text
    assert "stage 1 all-reduces" not in text


def test_a_stage_of_one_layer_is_called_by_its_name_alone() -> None:
    record = examples.pipeline_record()
    plan = record.plan
    first, second = plan.stages
    stages = (replace(first, stop=1), replace(second, start=1))
    assert ": block_0 on rank 0; block_1 to" in in_a_line(replace(plan, stages=stages))
    assert strategies.Spp.name in text_of(record, False)
