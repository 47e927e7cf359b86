"""Cases of `auto` for ten kinds of models, and of checkpoints that families write and load."""

import dataclasses
from typing import Any
from unittest import mock

import harness
import horovod.tensorflow as hvd
import staged  # noqa: F401 (lets modules of the tests be found)
import tensorflow as tf
from forced_families import FIRST, every_family_in_trials
from one_rank_steps import FAMILIES, LAST, MAX_STEPS, SAMPLES, cases, every_value, own

import tf_libra
from tests.model_parallel.job import batches, build_model, burst_layer_names, make_burst_plan
from tests.model_parallel.kinds_of_models import KINDS, halves, kinds_of_job, with_slots
from tf_libra.runtime import family_candidates, family_trials
from tf_libra.runtime.strategy_kinds import resolve_strategy
from tf_libra.strategies import Auto, OneRank, Spp

hvd.init()
SETTLED_STEPS = 3
WINNERS = ("spp", "deeppool", FIRST, "one-rank")


def in_two_stages(family):
    """Returns the strategy of a family; a pipeline of one stage would be data parallelism."""
    kind, strategy = resolve_strategy(family)
    return kind, dataclasses.replace(strategy, num_stages=2) if family == "spp" else strategy


def through_trials(name, chosen):
    """Trains a kind of model through trials that a family wins."""
    trained = build_model(KINDS[name])
    families = ("spp",) if chosen == FIRST else (chosen,)
    if name == "batch norm":
        families = FAMILIES
    strategy = Auto(threads=(1,), streams=(1,), families=families)
    steady = tf_libra.Tuning(retune_overhead=0.0)
    options: dict[str, Any] = {"max_tuning_steps": 8, "tuning": steady}
    if name == "embedding":  # else stages are left out
        options["sparse_as_dense"] = True
    plans, num_settled = [], 0
    with (
        every_family_in_trials(chosen),
        mock.patch.object(family_trials, "NUM_ROUNDS", 2),
        mock.patch.object(family_candidates, "resolve_strategy", in_two_stages),
    ):
        step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
        for batch in batches(MAX_STEPS, SAMPLES):
            images, labels = own(batch)
            step(halves(images) if name == "two inputs" else images, labels)
            plans.append(type(step.plan).__name__)
            num_settled += step.settled
            if num_settled == SETTLED_STEPS:
                break
    cases.save(**every_value(trained))
    return {"plans": plans, "explained": step.explain()}


def strategies():
    """Returns options of every family; rank 0 trains none, some or all of the variables."""
    bursts = make_burst_plan(burst_layer_names(with_slots), (2, 1, 2), harness.SIZE)
    return {
        "data parallelism": {"strategy": "wfbp", "max_tuning_steps": 2},
        "one-rank": {"strategy": OneRank(rank=LAST)},
        "spp": {"strategy": Spp(num_microbatches=2, num_stages=2)},
        "deeppool": {"plan": bursts},
    }


def checkpoints():
    """Writes a checkpoint under every family, and goes on from each of them under every family.

    Rank 0 alone writes. In between it evaluates, loads another model, and at last the trained one.
    """
    families, joint = strategies(), batches(4, SAMPLES)
    model, paths, saved, steps = build_model(with_slots), {}, {}, {}
    start = [tf.identity(variable) for variable in model.every_variable]
    for family, options in families.items():
        step = tf_libra.optimize(**options)(tf.function(model.step))
        for variable, value in zip(model.every_variable, start, strict=True):
            variable.assign(value)
        for batch in joint[:2]:
            step(*own(batch))
        paths[family] = str(harness.FOLDER / f"checkpoint of {family}")
        if harness.RANK == 0:
            tf.train.Checkpoint(variables=model.every_variable).write(paths[family])
        harness.barrier()
    for family, options in families.items():
        model, other = build_model(with_slots), build_model(with_slots)
        steps[family] = step = tf_libra.optimize(**options)(tf.function(model.step))
        for source, path in paths.items():
            tf.train.Checkpoint(variables=model.every_variable).read(path).assert_consumed()
            step(*own(joint[2]))
            saved |= {f"{source}, {family}: {i}": v for i, v in every_value(model).items()}
        if harness.RANK == 0:
            evaluate = tf.function(model.call)
            saved[f"{family}: evaluated"] = evaluate(joint[3][0])
            written = str(harness.FOLDER / f"checkpoint after {family}")
            tf.train.Checkpoint(variables=model.every_variable).write(written)
            tf.train.Checkpoint(variables=other.every_variable).read(written).assert_consumed()
            saved |= {f"{family}: loaded {i}": v for i, v in every_value(other).items()}
        step(*own(joint[3]))
        saved |= {f"{family}: {i}": v for i, v in every_value(model).items()}
        if harness.RANK == 0:
            tf.train.Checkpoint(variables=model.every_variable).read(paths[family])
        step(*own(joint[0]))
        saved |= {f"{family}: after {i}": v for i, v in every_value(model).items()}
    cases.save(**saved)
    steps["data parallelism"].check_variables()  # raises


for name in kinds_of_job(harness.SIZE):
    chosen = WINNERS[([*KINDS].index(name) + harness.SIZE) % len(WINNERS)]
    cases.add(name, lambda name=name, chosen=chosen: through_trials(name, chosen))
if harness.SIZE == 2:
    cases(checkpoints)
cases.run()
