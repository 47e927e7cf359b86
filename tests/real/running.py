"""Runs one training script three ways: by TF-Libra on its share of the data, and as a reference.

A script is a function of a `By`, which says who trains. It is written as its author would write
it, but for what `By` gives it: the decorator over its step, and its share of every joint batch.
"""

import contextlib
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

import tf_libra
import tf_libra.keras
from tf_libra.backends import engine as engine_lib
from tf_libra.planning.strategy import ChosenThreads, Draft, groups_from_stops
from tf_libra.specs.backward_profile import is_rows

# Tuning that ends early still leads through every phase that other ranks have to follow.
MAX_TUNING_STEPS = 2

Script = Callable[["By"], Any]


class Scripts:
    """The scripts of a module, by name, and what each is compared with; empty: nothing."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Script, str]] = {}

    def __call__(self, script: Script) -> Script:
        """Adds a script that one process trains to the same weights on the joint batch."""
        return self.like("alone")(script)

    def like(self, reference: str) -> Callable[[Script], Script]:
        """Adds a script that trains as `reference` does; "" is for no comparison.

        A reference is a kind of `By`, or "traced": one process alone, whose functions are traced.
        Without a comparison the script returns what JSON can say.
        """

        def add(script: Script) -> Script:
            assert script.__name__ not in self.found, script.__name__
            self.found[script.__name__] = (script, reference)
            return script

        return add


@tf_libra.strategies.register
@dataclass(frozen=True, kw_only=True)
class ByChance(ChosenThreads):
    """Several groups, with mixed thread counts; the same for the same seed and tensors."""

    name: ClassVar[str] = "by-chance"
    threads: tuple[int, ...] = (1, 2, 3)
    seed: int = 0

    def draft(self, profile: Any, cost: Any) -> Draft:
        random = np.random.default_rng(self.seed)
        count = len(profile.tensors)
        num_groups = min(count, int(random.integers(2, 6)))
        stops = sorted(random.choice(np.arange(1, count), num_groups - 1, replace=False))
        threads = random.choice(self.threads, num_groups)
        return Draft(groups=groups_from_stops([*map(int, stops), count], threads))


@dataclass
class By:
    """The way of training that a script uses.

    Attributes:
        kind: "alone": one process, the joint batch. "horovod": every rank its share, and what the
            script gives to `average` is averaged by Horovod. "ours": every rank its share, under
            a plan.
        name: of the script; chooses a random plan.
        rank: this process.
        size: how many there are.
        start: the values of variables before the first step, by `id`.
        made: variables that were made while functions ran eagerly, and what with.
        steps: the decorated steps, and models that Keras trains.
        calls: how many steps were called so far.
    """

    kind: str
    name: str
    rank: int
    size: int
    start: dict[int, np.ndarray] = field(default_factory=dict)
    made: list[tuple[Any, np.ndarray]] = field(default_factory=list)
    steps: list["Ours"] = field(default_factory=list)
    calls: int = 0

    @property
    def ours(self) -> bool:
        return self.kind == "ours"

    def optimize(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """`tf_libra.optimize` where it is ours, else nothing but `tf.function`."""

        def decorate(function: Callable[..., Any]) -> Any:
            if not self.ours:
                return Plain(self, function)
            self.steps.append(Ours(self, tf_libra.optimize(**self._briefly(options))(function)))
            return self.steps[-1]

        return decorate

    def _briefly(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns a decorator's arguments; each of a script's steps has a plan of its own."""
        strategy = ByChance(seed=zlib.crc32(self.name.encode()) + len(self.steps))
        return {"strategy": strategy, "max_tuning_steps": MAX_TUNING_STEPS} | options

    def share(self, *joint: Any) -> Any:
        """This rank's part of arrays that are a joint batch; all of them alone."""

        def cut(array: Any) -> Any:
            if self.kind == "alone":
                return tf.constant(array)
            count = len(array) // self.size
            return tf.constant(array[self.rank * count : (self.rank + 1) * count])

        parts = tuple(cut(array) for array in joint)
        return parts if len(parts) > 1 else parts[0]

    def batches(self, steps: int, make: Callable[[np.random.Generator], Any]) -> Iterator[Any]:
        """This rank's parts of joint batches, which `make` draws."""
        for number in range(steps):
            joint = make(np.random.default_rng(100 + number))
            yield self.share(*(joint if isinstance(joint, tuple) else (joint,)))

    def average(self, gradients: Sequence[Any]) -> list[Any]:
        """Averages as a script's author would with Horovod; for us, returns the gradients as is."""
        if self.kind != "horovod":
            return list(gradients)
        return [None if gradient is None else hvd.allreduce(gradient) for gradient in gradients]

    def dataset(self, arrays: Any, batch: int) -> tf.data.Dataset:
        """Batches of `batch` examples for each rank, and of all ranks' alone."""
        joint = tf.data.Dataset.from_tensor_slices(arrays).batch(batch * self.size)
        if self.kind == "alone":
            return joint
        first = self.rank * batch
        return joint.map(
            lambda *elements: tf.nest.map_structure(lambda x: x[first : first + batch], elements)
        )

    def fit(self, model: Any, arrays: Any, batch: int, epochs: int = 1, **options: Any) -> None:
        """Trains twice by `fit` on `batch` examples for each rank; see `fit_dataset`."""
        self.fit_dataset(model, self.dataset(arrays, batch), epochs, **options)

    def fit_dataset(self, model: Any, data: Any, epochs: int = 1, **options: Any) -> None:
        """Trains twice by `fit`: while it is tuned, and under the plan."""
        self.remember(model.trainable_variables)
        fitting = self.keras(model, **options)
        for _ in range(2):
            if fitting is not None:
                fitting.count()
            model.fit(data, epochs=epochs, verbose=0)
            if fitting is not None and not fitting.entered:
                fitting.entered = fitting.called

    def keras(self, model: Any, **options: Any) -> "Ours | None":
        """`tf_libra.keras.optimize` where it is ours: what is trained counts by itself."""
        if not self.ours:
            return None
        self.steps.append(Ours(self, tf_libra.keras.optimize(model, **self._briefly(options))))
        return self.steps[-1]

    def remember(self, variables: Any) -> None:
        """Keeps values from before training."""
        for variable in variables:
            self.start.setdefault(id(variable), np.array(tf.convert_to_tensor(variable)))

    def started_from(self, variable: Any) -> np.ndarray | None:
        """Returns a variable's value before training; None if that is not known."""
        made = {
            id(made_variable): value for made_variable, value in self.made
        }  # in a step, if not known before one
        for known in (self.start, made):
            for holder in (variable, getattr(variable, "value", None)):
                if id(holder) in known:
                    return known[id(holder)]
        return None

    @contextlib.contextmanager
    def eagerly(self) -> Iterator[None]:
        """Runs functions as they are written, since a small model's tracing takes longest."""

        def make(next_creator: Callable[..., Any], **given: Any) -> Any:
            variable = next_creator(**given)
            self.made.append((variable, np.array(tf.convert_to_tensor(variable))))
            return variable

        tf.config.run_functions_eagerly(True)
        try:
            with tf.variable_creator_scope(make):
                yield
        finally:
            tf.config.run_functions_eagerly(False)


class Plain:
    """A step without TF-Libra."""

    def __init__(self, by: By, function: Callable[..., Any]) -> None:
        self._by = by
        is_function = hasattr(function, "python_function")
        self._function: Any = function if is_function else tf.function(function)
        self._is_new = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tf.config.functions_run_eagerly():
            self._by.remember(variable for variable, _ in self._by.made)
        elif self._is_new:
            self._is_new = False
            graph = self._function.get_concrete_function(*args, **kwargs).graph
            self._by.remember(graph.variables)
        return self._function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class Ours:
    """A step that is tuned briefly, and then runs under a random plan."""

    def __init__(self, by: By, optimized: Any) -> None:
        self._by = by
        self.optimized = optimized
        self.entered = self.called = 0

    @property
    def is_planned(self) -> bool:
        return self.optimized.phase == "run" and self.optimized.plan is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count()
        return self.optimized(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        self.optimized.__get__(instance, owner)  # which learns that it is a method
        return types.MethodType(self, instance)

    def count(self) -> None:
        """Counts a call that is to come; what the first one under the plan finds is drained."""
        self._by.calls += 1
        self.called = self._by.calls
        if self.is_planned and not self.entered:
            self.entered = self.called


def run_alone(name: str, script: Script, size: int, reference: str) -> dict[str, Any]:
    """Weights of one process, trained on the joint batches, and from where they started."""
    by = By("alone", name, 0, size)
    with by.eagerly() if reference == "alone" else contextlib.nullcontext():
        return _trained(by, script)


def run(name: str, script: Script, rank: int, size: int, reference: str, save: Any) -> Any:
    """Trains under plans, and by Horovod if that is the reference; saves weights."""
    saved: dict[str, Any] = {}
    if reference == "horovod":
        saved = _trained(By("horovod", name, rank, size), script)
    by = By("ours", name, rank, size)
    saved |= _trained(by, script)
    save(**saved)
    return executed(by)


def _trained(by: By, script: Script) -> dict[str, Any]:
    fresh()
    saved: dict[str, Any] = {}
    for index, trained in enumerate(script(by)):
        saved[f"{by.kind}/{index}"] = np.array(tf.convert_to_tensor(trained))
        before = by.started_from(trained)
        if before is not None:
            saved[f"start.{by.kind}/{index}"] = before
    return saved


def run_ours(name: str, script: Script, rank: int, size: int) -> Any:
    """Runs a script that is compared with nothing; it returns what JSON can say."""
    fresh()
    by = By("ours", name, rank, size)
    reported = script(by)
    return {"reported": reported, **executed(by)}


def fresh() -> None:
    """Resets Keras, so that no state of an earlier script reaches the next."""
    keras.backend.clear_session()
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(1)


def use_float64() -> None:
    """Keras' layers compute in double precision, so that weights can be compared closely."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def _planned(plan: Any) -> Iterator[tuple[int, list[str]]]:
    """Yields threads and tensors of all-reduces, of which rows of a gradient have their own."""
    dtypes = plan.dtypes or (None,) * len(plan.tensor_names)
    for group in plan.groups:
        members = range(group.start, group.stop)
        rows = [index for index in members if is_rows(dtypes[index])]
        dense = [index for index in members if index not in rows]
        parts = [dense] if any(plan.num_bytes[index] for index in dense) else []
        for part in (*parts, *([index] for index in rows)):
            yield group.num_threads, [plan.tensor_names[index] for index in part]


def executed(by: By) -> dict[str, Any]:
    """Phases, plans, and all-reduces since the last plan came into force, as JSON values.

    Rank 0 drains the engine's records itself while it compares plans with predictions.
    """
    running = engine_lib.running()
    records = running.drain_telemetry() if running is not None and by.rank > 0 else ()
    steps: list[Any] = []
    drained = max((step.entered for step in by.steps), default=0)
    for step in by.steps:
        plan = step.optimized.plan
        steps.append(
            {
                "is_planned": step.is_planned,
                "phase": str(step.optimized.phase),
                "is_recorded": step.called > drained,
                "groups": [] if plan is None else list(_planned(plan)),
            }
        )
        getattr(step.optimized, "close", lambda: None)()
    return {
        "steps": steps,
        "executed": sorted(
            {(r.num_threads, r.tensor_names) for r in records if r.group >= 0 and r.plan}
        ),
    }
