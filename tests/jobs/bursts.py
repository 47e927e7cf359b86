"""Cases of bursts on several workers: results, variables, and rejected plans."""

import dataclasses
from unittest import mock

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from staged import refused  # also lets modules of the tests be found

import tf_libra
from tests.model_parallel import models, plain_models
from tests.model_parallel.job import batches, build_model, burst_layer_names, make_burst_plan
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.planning.burst import DataParallel, SearchLinear
from tf_libra.model_parallel.runtime.burst_planner import BurstPlanner
from tf_libra.model_parallel.runtime.gradient_buckets import in_production_order
from tf_libra.strategies import DeepPool

hvd.init()
cases = harness.Cases()
SAMPLES, STEPS = 24, 3
PATTERNS = {2: (2, 1, 2), 4: (4, 2, 1, 4)}
PLANNED_STEPS = {2: 14, 4: 20}  # the last two run under the plan
LOGDIR = harness.FOLDER / "logdir"


def train(make, strategy, num_steps, **options):
    trained = build_model(make)
    step = tf_libra.optimize(strategy, **options)(tf.function(trained.step))
    returned, phases = [], []
    for images, labels in batches(num_steps, SAMPLES):
        result = step(harness.own(images), harness.own(labels))
        returned.append({name: np.array(value).tolist() for name, value in result.items()})
        phases.append(step.phase)
    step.synchronize_variables()
    every = map(tf.convert_to_tensor, trained.every_variable)
    cases.save(**{str(i): variable.numpy() for i, variable in enumerate(every)})
    return {
        "returned": returned,
        "phases": phases,
        "num_devices": list(step.plan.num_devices),
        "layers": list(step.plan.layer_names),
        "notes": list(step.plan.notes),
        "explained": step.explain(),
        "settled": step.settled,
    }


def given(make):
    plan = make_burst_plan(burst_layer_names(make), PATTERNS[harness.SIZE], harness.SIZE)
    return train(make, DeepPool(), STEPS, plan=plan)


def overlapped():
    """Returns the results with an all-reduce of its own for every gradient of a replicated stage.

    Whether that pays, and so whether a planned burst does it, depends on the machine.
    """
    adopt = BurstPlanner._adopt

    def adopt_with_groups(self, plan):
        layout = Layout.from_burst_plan(plan, harness.SIZE)
        cut = self._traces.partition(layout.starts)
        groups = tuple(
            tuple((name,) for name in in_production_order(cut, stage) if len(ranks) > 1)
            for stage, ranks in enumerate(layout.ranks)
        )
        assert sum(map(len, groups)) > 1
        return adopt(self, plan, groups)

    with mock.patch.object(BurstPlanner, "_adopt", adopt_with_groups):
        return given(models.convolutional)


def beside():
    """Trains a model with its branches on separate devices."""
    names = burst_layer_names(models.forked)
    half = harness.SIZE // 2
    plan = make_burst_plan(names, [half], harness.SIZE)
    firsts = [half * (number % 2) for number in range(len(names))]
    plan = dataclasses.replace(plan, first_devices=tuple(firsts))
    return train(models.forked, DeepPool(), STEPS, plan=plan)


# More ranks share layers in more ways; threads of one process train every model in such ways.
GIVEN = (models.mlp, models.vgg, models.inception) if harness.SIZE == 2 else (models.mlp,)
for make in GIVEN:
    cases.add(f"given {make.__name__}", lambda make=make: given(make))
cases.add("given beside", beside)


def alone():
    """Trains a model on the last rank, in enough steps to measure an iteration."""
    names = burst_layer_names(models.mlp)
    plan = make_burst_plan(names, [1], harness.SIZE)
    plan = dataclasses.replace(plan, first_devices=(harness.SIZE - 1,) * len(names))
    return train(models.mlp, DeepPool(), 5, plan=plan)


if harness.SIZE == 2:
    cases.add("given alone", alone)
strategy, steps = DeepPool(max_amplification=1.5), PLANNED_STEPS[harness.SIZE]
# Enough steps to measure an iteration under the plan that is written.
cases.add("planned mlp", lambda: train(models.mlp, strategy, steps + 3, logdir=LOGDIR))
if harness.SIZE == 2:
    cases.add("planned inception", lambda: train(models.inception, strategy, steps))
    cases.add("planned without a limit", lambda: train(models.mlp, "deeppool", steps))
else:
    cases.add("given overlapped", overlapped)
    # By default 3 ranks are not measured.
    cases.add("fixed", lambda: train(models.mlp, DataParallel(num_devices=3), 14))


def of_other_layers():
    plan = make_burst_plan(["one", "two"], (1,), harness.SIZE)
    refused(models.mlp, DeepPool(), plan=plan)


def of_more_workers():
    count = 2 * harness.SIZE
    plan = make_burst_plan(burst_layer_names(models.mlp), (count,), count)
    refused(models.mlp, DeepPool(), plan=plan)


if harness.SIZE == 2:
    cases.add("of other layers", of_other_layers)
    cases.add("of more workers", of_more_workers)
    more = DataParallel(num_devices=2 * harness.SIZE)
    cases.add("fixed to more", lambda: refused(models.mlp, more))
    cases.add("no branches", lambda: refused(models.inception, SearchLinear()))
    cases.add("not cut", lambda: refused(plain_models.plain, DeepPool()))
    cases.add("one layer", lambda: refused(models.shallow, DeepPool()))
else:
    cases.add("not divided", lambda: refused(models.mlp, DeepPool(device_counts=(1, 3, 4))))

if __name__ == "__main__":
    cases.run()
