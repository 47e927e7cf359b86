"""Cases of Keras' `fit` as a pipeline, compared with `fit` of one process on joint batches."""

import functools
import pickle
from typing import Any

import harness
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

import tf_libra.keras
from tf_libra.strategies import DeepPool, Spp

cases = harness.Cases()
FEATURES, CLASSES, SHARE, STEPS, EPOCHS = 12, 5, 16, 5, 2
# On three workers one of the stages has two replicas.
STRATEGY = Spp(num_microbatches=4, num_stages=2)


def compiled(**options: Any) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input([FEATURES])
    x = keras.layers.Dense(16, activation="tanh", name="first")(inputs)
    x = keras.layers.Dense(9, activation="tanh", name="second")(x)
    x = keras.layers.Dense(9, activation="tanh", name="third")(x)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="fourth")(x), name="staged")
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def arrays(share: int = SHARE, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    count = SIZE * share * steps
    inputs = random.normal(size=(count, FEATURES)).astype("float32")
    return inputs, random.integers(0, CLASSES, size=count)


def data(alone: bool) -> tf.data.Dataset:
    """Returns joint batches for one process, else this rank's shard of each."""
    joint = SIZE * SHARE
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).batch(joint)
    if alone:
        return dataset
    first = RANK * SHARE
    return dataset.map(lambda x, y: (x[first : first + SHARE], y[first : first + SHARE]))


def validation() -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = arrays(steps=1)
    return inputs + 1, labels


def weights(model: Any) -> dict[str, np.ndarray]:
    """Returns weights and slots by number, because optimizers rename theirs."""
    every = [*model.trainable_variables, *model.optimizer.variables]
    return {str(number): np.array(variable.value) for number, variable in enumerate(every)}


class Watching(keras.callbacks.Callback):
    """A callback on one rank that reads all weights at the ends of batches, epochs or both.

    `first_epochs` has the first epoch in which it does, by "train_batch" or "epoch".
    """

    def __init__(self, **first_epochs: int) -> None:
        super().__init__()
        self.found: dict[str, dict[str, np.ndarray]] = {}
        self.first_epochs = first_epochs
        self.epoch = 0
        for when in first_epochs:
            setattr(self, f"on_{when}_end", functools.partial(self.look, when))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def look(self, when: str, number: int, logs: Any = None) -> None:
        if self.epoch >= self.first_epochs[when]:
            self.found[f"{when} {self.epoch} {number}"] = weights(self.model)


def fit(
    callbacks: list[Any], alone: bool, strategy: Any = STRATEGY, **options: Any
) -> tuple[Any, Any, dict[str, list[float]]]:
    """Returns a fitted model, the result of `optimize`, and metrics."""
    model = compiled(**options)
    fitting = None if alone else tf_libra.keras.optimize(model, strategy)
    history = model.fit(
        data(alone),
        epochs=EPOCHS,
        verbose=0,
        validation_data=validation(),
        callbacks=callbacks,
    )
    metrics = {name: [float(v) for v in values] for name, values in history.history.items()}
    return model, fitting, metrics


@functools.cache
def alone_with(steps_per_execution: int) -> dict[str, Any]:
    """Returns what `fit` of rank 0 alone leads to; all ranks call this at the same time."""
    path = FOLDER / f"alone.{steps_per_execution}.pickle"
    if RANK == 0:
        watching = Watching(epoch=0, train_batch=0)
        # Eagerly, since tracing takes longest; Keras then runs no several steps at a time.
        steps = {"steps_per_execution": steps_per_execution}
        options = {"run_eagerly": True} if steps_per_execution == 1 else steps
        model, _, metrics = fit([watching], alone=True, **options)
        results = {"found": watching.found, "weights": weights(model), "metrics": metrics}
        path.write_bytes(pickle.dumps(results | used(model)))
    harness.barrier()
    keras.utils.clear_session()  # else rank 0 would number the names of the next model otherwise
    return pickle.loads(path.read_bytes())


def used(model: Any) -> dict[str, Any]:
    """Returns predictions and metrics of a fitted model."""
    inputs, labels = validation()
    return {
        "predict": model.predict(inputs, verbose=0),
        "evaluate": model.evaluate(inputs, labels, verbose=0),
    }


def compare(first_epochs: dict[str, int], saving: Any = None, **options: Any) -> dict[str, Any]:
    """Compares weights and metrics during and after `fit` with those of one process.

    Args:
        first_epochs: when the last rank reads weights; see `Watching`.
        saving: callback of rank 0.
        **options: those of `fit`.
    """
    here = Watching(**first_epochs)
    alone = alone_with(options.get("steps_per_execution", 1))
    callbacks = {0: [saving] if saving else [], SIZE - 1: [here]}
    ours, fitting, history = fit(callbacks.get(RANK, []), alone=False, **options)
    errors = {"after": furthest(weights(ours), alone["weights"])}
    assert bool(here.found) == (RANK == SIZE - 1)
    errors |= {key: furthest(own, alone["found"][key]) for key, own in here.found.items()}
    for name, value in used(ours).items():
        errors[name] = float(np.abs(np.subtract(value, alone[name])).max())
    return {
        "errors": errors,
        "history": history,
        "expected": alone["metrics"],
        "stages": [list(stage.devices) for stage in getattr(fitting.plan, "stages", ())],
        "explained": fitting.explain(),
    }


def furthest(own: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert own.keys() == other.keys()
    return max(float(np.abs(own[name].astype(float) - other[name]).max()) for name in own)


@cases
def one_step() -> Any:
    """Rank 0 also saves after every third batch, and loads the checkpoint of the first epoch."""
    path = str(FOLDER / "at-{epoch}-{batch}.weights.h5")
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=3)
    found = compare({"epoch": 0, "train_batch": 1}, saving)
    if RANK == 0:
        other = compiled()
        other.load_weights(path.format(epoch=1, batch=3))
        wanted = alone_with(1)["found"]["train_batch 0 2"]
        read = {
            str(i): np.array(trainable_variable.value)
            for i, trainable_variable in enumerate(other.trainable_variables)
        }
        found["checkpoint"] = furthest(read, {name: wanted[name] for name in read})
    return found


cases.add("several_steps", lambda: compare({"train_batch": 0}, steps_per_execution=2))
# All steps measure, a few for each number of ranks.
cases.add("bursts", lambda: compare({"epoch": 0}, strategy=DeepPool(max_amplification=1.5)))


@cases
def on_batch() -> Any:
    """Reads weights after `train_on_batch`, on one rank after the other.

    Then continues data-parallel, from the weights that the pipeline has trained.
    """
    alone, ours = compiled(run_eagerly=True), compiled()
    tf_libra.keras.optimize(ours, STRATEGY)
    inputs, labels = arrays(steps=1)
    errors = []
    for number in range(3):
        alone.train_on_batch(inputs, labels)
        ours.train_on_batch(harness.own(inputs), harness.own(labels))
        if number in (RANK, 2):
            pairs = zip(ours.get_weights(), alone.get_weights(), strict=True)
            errors += [float(np.abs(own - other).max()) for own, other in pairs]
            own, other = (model.predict(inputs, verbose=0) for model in (ours, alone))
            errors.append(float(np.abs(own - other).max()))
    ours.save(str(FOLDER / f"saved-{RANK}.keras"))
    saved = keras.models.load_model(str(FOLDER / f"saved-{RANK}.keras"))
    errors.append(furthest(weights(saved), weights(alone)))
    errors.append(furthest(weights(ours), weights(alone)))
    ours.train_on_batch(harness.own(inputs), harness.own(labels))
    tf_libra.keras.optimize(ours, "syneasgd", max_tuning_steps=2)
    ours.train_on_batch(harness.own(inputs), harness.own(labels))
    for _ in range(2):
        alone.train_on_batch(inputs, labels)
    ours.predict(inputs, verbose=0)
    return {"pipeline": max(errors), "taken_over": furthest(weights(ours), weights(alone))}


@cases
def shorter_last() -> float:
    """Fits with a last batch that microbatches do not divide."""
    ours, alone = compiled(), compiled(run_eagerly=True)
    tf_libra.keras.optimize(ours, STRATEGY)
    inputs, labels = arrays()
    for model in (ours, alone):
        model.fit(inputs[:18], labels[:18], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return furthest(weights(ours), weights(alone))


if __name__ == "__main__":
    hvd.init()
    cases.run()
