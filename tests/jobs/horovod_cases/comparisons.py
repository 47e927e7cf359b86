"""Steps under a plan, without the decorator, and of one process alone."""

import dataclasses
import functools
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE

import tf_libra
from horovod_cases.steps import (
    EDGES,
    STEPS,
    THREADS,
    BFloat16Compressor,
    CompressingTape,
    Each,
    EachByAdasum,
    EachClipped,
    EachCompressed,
    EachInProcessSet,
    EachScaled,
    EachWithMaxima,
    Grouped,
    GroupedInProcessSet,
    GroupedWithFigures,
    GroupingTape,
    InOneVector,
    KerasEach,
    KerasOptimizer,
    KerasTape,
    Looked,
    LookedByDenseTape,
    LookedByEach,
    LookedByTape,
    LookedGrouped,
    OfLargest,
    PartlyInProcessSet,
    PerturbedTape,
    PredividingTape,
    Scattered,
    Script,
    Tape,
    TapeByAdasum,
    TapeInProcessSet,
    TapeOfFloat32,
    TapeOfMaxima,
    TapeOfMinima,
    TapeOfProducts,
    TapeOfSums,
    TapeWithLocalSource,
    Version1Optimizer,
    WithFigures,
    cases,
)


def train(step: Any, model: Any, whole: bool, dtype: str = "float64") -> tuple[dict[str, Any], Any]:
    """Weights at the end, and what the last step has shown."""
    shown = None
    for number in range(STEPS):
        joint = models.batch(number, SIZE, dtype)
        shown = step(*(joint if whole else models.part(joint, RANK, SIZE)))
    return model.weights(), np.asarray(shown)


def plan_for(model: Any) -> Any:
    """Three groups of what is to be planned, which `planned` and `wire_dtype` may change."""
    trained = getattr(model, "model", None)
    variables = model.variables if trained is None else trained.trainable_variables
    chosen = getattr(model, "planned", lambda variables: variables)(variables)
    edges = sorted({*EDGES[:-1], len(chosen)})
    return models.plan_of(chosen, SIZE, edges, THREADS, dtype=getattr(model, "wire_dtype", None))


def compare(kind: Any, alone: Any = None, plain: Any = None) -> Any:
    """Trains under a plan, without the decorator, and, where that is to be equal, alone."""
    saved = {}
    if alone is not None:
        model = alone()
        weights, _ = train(model.step, model, whole=True)
        saved |= {f"alone/{name}": value for name, value in weights.items()}
    if plain is not None:
        model = plain()
        weights, shown = train(tf.function(model.step), model, whole=False)
        saved |= {f"plain/{name}": value for name, value in weights.items()}
        saved["shown/plain"] = shown
    model = kind()
    plan = plan_for(model)
    step = tf_libra.optimize(plan=plan)(tf.function(model.step))
    weights, shown = train(step, model, whole=False)
    saved |= {f"ours/{name}": value for name, value in weights.items()}
    saved["shown/ours"] = shown
    cases.save(**saved)
    return {"phase": str(step.phase), "groups": len(step.plan.groups)}


def compare_unplanned(kind: Any) -> Any:
    """Trains as the script says, without the decorator and with it: there is nothing to plan."""
    model = kind()
    weights, _ = train(tf.function(model.step), model, whole=False)
    saved = {f"plain/{name}": value for name, value in weights.items()}
    result = train_unplanned(kind)
    model = result.pop("model")
    cases.save(**saved, **{f"ours/{name}": value for name, value in model.weights().items()})
    return result


def train_unplanned(kind: Any) -> Any:
    model = kind()
    step = tf_libra.optimize("wfbp")(tf.function(model.step))
    train(step, model, whole=False)
    planned = step.plan is not None
    if kind in RESHAPED.values():  # the ranks of a process set train apart
        step.check_variables()
    return {"model": model, "phase": step.phase, "planned": planned, "explained": step.explain()}


def compare_rounding(compressor: Any, dtype: str) -> Any:
    """Trains with gradients that the script rounds, and with those that ranks round."""
    saved, explained = {}, []
    for wire_dtype in (None, dtype):
        model = TapeOfFloat32(hvd.Compression.none if wire_dtype else compressor)
        of_script = None if wire_dtype else dtype
        plan = models.plan_of(model.variables, SIZE, EDGES, THREADS, dtype=of_script)
        plan = dataclasses.replace(plan, wire_dtype=wire_dtype)
        step = tf_libra.optimize(plan=plan, wire_dtype=wire_dtype)(tf.function(model.step))
        weights, _ = train(step, model, whole=False, dtype="float32")
        saved |= {f"{wire_dtype}/{name}": value for name, value in weights.items()}
        explained.append(step.explain())
    cases.save(**saved)
    return {"explained": explained}


ROUNDED = {"float16": hvd.Compression.fp16, "bfloat16": BFloat16Compressor}
SAME_AS_ALONE = {
    "tape": Tape,
    "predividing_tape": PredividingTape,
    "grouping_tape": GroupingTape,
    "each": Each,
    "each_with_maxima": EachWithMaxima,
    "grouped": Grouped,
    "grouped_with_figures": GroupedWithFigures,
    "version_1_optimizer": Version1Optimizer,
}
SAME_AS_PLAIN = {
    "tape_of_sums": TapeOfSums,
    "compressing_tape": CompressingTape,
    "tape_with_local_source": TapeWithLocalSource,
    "perturbed_tape": PerturbedTape,
    "each_scaled": EachScaled,
    "each_compressed": EachCompressed,
    "each_clipped": EachClipped,
    "partly_in_process_set": PartlyInProcessSet,
}
UNPLANNED = {
    "tape_of_minima": TapeOfMinima,
    "tape_of_maxima": TapeOfMaxima,
    "tape_of_products": TapeOfProducts,
    "tape_in_process_set": TapeInProcessSet,
    "each_in_process_set": EachInProcessSet,
    "grouped_in_process_set": GroupedInProcessSet,
}
RESHAPED = {
    "in_one_vector": InOneVector,
    "of_largest": OfLargest,
    "scattered": Scattered,
}
BY_ADASUM = {"tape_by_adasum": TapeByAdasum, "each_by_adasum": EachByAdasum}
SPARSE = {
    "looked_by_tape": LookedByTape,
    "looked_by_dense_tape": LookedByDenseTape,
    "looked_by_each": LookedByEach,
    "looked_grouped": LookedGrouped,
}


def add_all() -> None:
    for name, kind in SAME_AS_ALONE.items():
        cases.add(name, lambda kind=kind: compare(kind, alone=Script, plain=kind))
    for dtype, compressor in ROUNDED.items():
        cases.add(f"rounded_to_{dtype}", functools.partial(compare_rounding, compressor, dtype))
    for name, kind in SAME_AS_PLAIN.items():
        cases.add(name, lambda kind=kind: compare(kind, plain=kind))
    for name, kind in (UNPLANNED | RESHAPED).items():
        cases.add(name, lambda kind=kind: compare_unplanned(kind))
    for name, kind in BY_ADASUM.items():
        # Horovod has no Adasum without MPI.
        run = compare_unplanned if hvd.mpi_enabled() else train_unplanned
        cases.add(name, lambda run=run, kind=kind: run(kind))
    for name, kind in SPARSE.items():
        cases.add(name, lambda kind=kind: compare(kind, alone=Looked, plain=kind))
    cases.add("with_figures", lambda: compare(WithFigures, alone=Script))
    keras = {
        "keras_tape": (KerasTape, "sgd"),
        "keras_each": (KerasEach, "adam"),
        "keras_optimizer": (KerasOptimizer, "sgd"),
    }
    for name, (kind, optimizer) in keras.items():
        alone = lambda optimizer=optimizer: models.Keras("float64", optimizer)  # noqa: E731
        cases.add(name, lambda kind=kind, alone=alone: compare(kind, alone=alone))
