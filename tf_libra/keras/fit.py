"""`optimize`: one line between `compile` and `fit`."""

import contextlib
import textwrap
from collections.abc import Callable
from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_libra import config, decorator
from tf_libra.autotune import Phase, TuningResult
from tf_libra.capture.mirrored_strategy_ops import reject_several_replicas
from tf_libra.coordination.launcher_environment import launched_rank
from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting, log_utils
from tf_libra.keras import multi_worker_fit
from tf_libra.keras.multi_worker_fit import take, without_optionals
from tf_libra.keras.uneven_fit import UnevenEpochs
from tf_libra.runtime.error_feedback import DeferredErrorFeedback
from tf_libra.runtime.strategy_kinds import (
    AnyStrategy,
    all_options,
    has_joint_results,
    without_families,
)
from tf_libra.specs.backward_profile import BackwardProfile

_MIRRORED = (
    "note: fit compares data-parallel plans alone: MultiWorkerMirroredStrategy has every worker"
    " compute the whole step"
)


class OptimizedFit:
    """State of a model's training steps, as `optimize` returns it.

    Attributes:
        phase: tuning phase of the training step; None before the first `fit`.
        plan: active plan; None before a plan is active.
        profile: measured backward computation; None before it is known.
        cost_model: fitted contention model; None before it is known.
        tuned: result of tuning, in this job or in an earlier one whose plan was cached; None
            before, and for a plan that the user provides.
        settled: whether trials and measurements have ended.
    """

    def __init__(
        self,
        model: keras.Model,
        decorate: Callable[..., decorator.Optimized],
        has_joint_results: bool = False,
        leaves_out_families: bool = False,
        has_error_feedback: bool = False,
    ) -> None:
        """Makes `fit` and `train_on_batch` of `model` train under a plan.

        Args:
            model: model to train.
            decorate: returns the optimized step of a step.
            has_joint_results: whether metrics may be those of all ranks' examples.
            leaves_out_families: whether the strategy would compare other families elsewhere.
            has_error_feedback: whether rounding errors are added to the next gradients.
        """
        self._model = model
        self._error_feedback = DeferredErrorFeedback() if has_error_feedback else None
        self._decorate = decorate
        self._steps: decorator.Optimized | None = None
        self._leaves_out_families = leaves_out_families
        has_uneven = not has_joint_results
        self._uneven = UnevenEpochs(model, self.synchronize_variables) if has_uneven else None
        multi_worker_fit.prepare(model)
        # Keras asks for its training function by this name, once per `compile`.
        model.make_train_function = self._make_train_function

    @property
    def phase(self) -> Phase | None:
        """Tuning phase of the training step; None before the first `fit`."""
        return None if self._steps is None else self._steps.phase

    @property
    def plan(self) -> Any:
        """Active plan; None before a plan is active."""
        return None if self._steps is None else self._steps.plan

    @property
    def profile(self) -> BackwardProfile | None:
        """Measured backward computation; None before it is known."""
        return None if self._steps is None else self._steps.profile

    @property
    def cost_model(self) -> CostModel | None:
        """Fitted contention model; None before it is known."""
        return None if self._steps is None else self._steps.cost_model

    def explain(self) -> str:
        """Returns model, plan and times, as known so far: text of at most 100 columns."""
        if self._steps is None:
            return "fit has not been called yet"
        lines = textwrap.wrap(_MIRRORED, formatting.COLUMNS) if self._leaves_out_families else []
        return "\n".join([*lines, self._steps.explain()])

    @property
    def tuned(self) -> TuningResult | None:
        """Result of tuning, in this job or an earlier one; None before."""
        return None if self._steps is None else self._steps.tuned

    @property
    def settled(self) -> bool:
        """True if trials and measurements have ended; from the same step on every rank."""
        return self._steps is not None and self._steps.settled

    @property
    def error_feedback(self) -> Any:
        """State of error feedback, for `tf.train.Checkpoint`; None without that option.

        A checkpoint may restore it before the first `fit`, too.
        """
        return self._error_feedback

    def check_variables(self) -> None:
        """Compares the variables of the training step with those of every other rank.

        The first step does that by itself. Call it on all ranks after a change of variables
        between steps, such as loading weights.

        Raises:
            ValueError: a variable differs; raised on every rank.
        """
        if self._steps is not None:
            self._steps.check_variables()

    def synchronize_variables(self) -> None:
        """Synchronizes the variables of the training step on all ranks.

        `fit` does that by itself, and reads of variables need no call.

        Raises:
            HorovodInternalError: a rank is gone, late, or has aborted.
        """
        if self._steps is not None:
            self._steps.synchronize_variables()

    def close(self) -> None:
        """Logs a summary and closes files in `logdir`, as the end of the process does.

        Later steps still run, without records.
        """
        if self._steps is not None:
            self._steps.close()

    def _leave(self) -> None:
        """Releases the model to another call of `optimize`."""
        if self._uneven is not None:
            self._uneven.leave()
        self.close()

    def _make_train_function(self, force: bool = False) -> Any:
        model = self._model
        if model.train_function is None or force:
            _check(model)
            self.close()
            if self._uneven is not None:
                self._steps = self._decorate(
                    _steps_function(model),
                    weights=lambda: model.weights,
                    single_step=_single_step(model, lambda batches: batches[0]),
                )
                model.train_function = _train_function(model, self._steps, self._uneven)
            else:
                self._steps = self._decorate(_single_step(model, lambda data: data))
                model.train_function = _staged_function(model, self._steps)
            if self._error_feedback is not None:
                self._error_feedback.connect(self._steps.error_feedback)
        return model.train_function


@config.with_option_signature(all_options(), progress=False)
def optimize(
    model: keras.Model,
    strategy: AnyStrategy | str = "auto",
    **options: Unpack[config.OptimizeKwargs],
) -> OptimizedFit:
    """Makes `model.fit` data-parallel under a plan for this model and these machines.

        model.compile(optimizer, loss)
        fitting = tf_libra.keras.optimize(model)
        model.fit(...)
        print(fitting.explain())

    Every rank feeds `fit` its own share of the data. If the numbers of batches differ, and Keras
    knows them on every rank, a rank without further batches takes part in the steps of the others
    with the weight zero, as under `tf_libra.join`. Callbacks,
    validation, a custom `train_step` and `steps_per_execution` work as before; while the first
    steps measure, they run one at a time. Under a strategy for pipelines or bursts, ranks run
    layers of the model (docs/pipeline.md, docs/burst.md). A model made in the scope of a
    `MultiWorkerMirroredStrategy` trains on its workers, without Horovod.

    Args:
        model: a Keras 3 model that trains with TensorFlow. It may be compiled later, before it
            trains; another `compile` starts another measurement.
        strategy: a name or an object of `tf_libra.strategies`.
        **options: by name, those of docs/options.md; `help` lists them, too.

    `progress` is False unless given, since Keras shows its own; with `verbose=0` it may be True.

    Returns:
        An object with the plan, the profile and `explain()`.

    Raises:
        ValueError: an option is out of its range, or the model runs eagerly, is compiled by XLA,
            or was made under a `tf.distribute` strategy other than MultiWorkerMirroredStrategy.
            If the model is not compiled yet, `fit` raises the error.
    """
    user_strategy = strategy
    if isinstance(model, keras.Model) and multi_worker_fit.is_of_workers(model):
        strategy = without_families(strategy)
    requested: config.OptimizeKwargs = {"progress": False, **options}
    decorate = decorator.optimize(strategy, **requested)
    if not isinstance(model, keras.Model):
        kind, package = type(model).__name__, type(model).__module__.partition(".")[0]
        advice = "; decorate a training step of your own with tf_libra.optimize instead"
        raise ValueError(
            f"model must be a Keras 3 model, got {kind}"
            + (f" of tf_keras{advice}" if package == "tf_keras" else "")
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"model trains with {keras.backend.backend()}; TF-Libra plans TensorFlow's graphs:"
            " set KERAS_BACKEND=tensorflow"
        )
    if model.compiled:
        _check(model)
    # A function that Keras has made before would train without averaging, or with earlier options.
    model.train_function = None
    before = getattr(model.make_train_function, "__self__", None)
    if isinstance(before, OptimizedFit):
        before._leave()
    return OptimizedFit(
        model,
        decorate,
        has_joint_results(strategy),
        strategy is not user_strategy,
        requested.get("error_feedback", False),
    )


def _check(model: keras.Model) -> None:
    """Raises `ValueError` if a plan could have no effect on the model."""
    if type(model).make_train_function is not keras.Model.make_train_function:
        raise ValueError(
            f"model {model.name!r} overrides make_train_function, which TF-Libra would replace:"
            " override train_step instead, or decorate your own training step with"
            " tf_libra.optimize"
        )
    if model.run_eagerly:
        raise ValueError(
            f"model {model.name!r} has run_eagerly=True, which leaves no graph to plan: compile it"
            " with run_eagerly=False"
        )
    if model.jit_compile and model._resolve_auto_jit_compile():  # as Keras does with a GPU
        log_utils.logger(launched_rank()).info(
            "keras: model %r is trained without XLA, which cannot call the all-reduce", model.name
        )
        model.jit_compile = False
    if model.jit_compile:
        raise ValueError(
            f"model {model.name!r} has jit_compile=True, and XLA cannot call the all-reduce:"
            " compile it with jit_compile=False"
        )
    strategy = model.distribute_strategy
    if multi_worker_fit.is_of_workers(model):
        reject_several_replicas(f"model {model.name!r}", strategy.extended.worker_devices)
    elif strategy.num_replicas_in_sync != 1:
        raise ValueError(
            f"model {model.name!r} was made under {type(strategy).__name__}, which averages"
            " gradients itself: make it under MultiWorkerMirroredStrategy, or without any, and"
            " start one process per device"
        )


def _steps_function(model: keras.Model) -> Any:
    """Returns a function that runs one training step per batch, in sequence."""
    run = multi_worker_fit.in_replicas(model, lambda data: model.train_step(data))

    # A nested function, traced once: all steps of a graph have the same names of gradients, so one
    # plan fits each of them.
    @tf.function(reduce_retracing=True, autograph=False)
    def train_step(data: Any) -> Any:
        return run(without_optionals(data))

    def train_steps(batches: tuple[Any, ...]) -> Any:
        outputs = None
        for data in batches:
            outputs = train_step(data)
        return outputs

    train_steps.__qualname__ = f"train_step of model {model.name}"
    return tf.function(train_steps, reduce_retracing=True, autograph=False)


def _single_step(model: keras.Model, batch_of: Callable[[Any], Any]) -> Any:
    """Returns a training step with all layers in one graph, which stages can partition.

    Args:
        model: the model.
        batch_of: returns the batch, for the argument of the step.
    """

    def train_step(data: Any) -> Any:
        return model.train_step(batch_of(data))

    train_step.__qualname__ = f"train_step of model {model.name}"
    return tf.function(train_step, autograph=False)


def _staged_function(model: keras.Model, steps: decorator.Optimized) -> Callable[[Any], Any]:
    """Returns the function of a pipeline that Keras calls for `steps_per_execution` batches.

    The function runs the batches one at a time.
    """

    def train_function(iterator: Any) -> Any:
        batches = tuple(take(iterator, model.steps_per_execution))
        if not batches:
            raise StopIteration
        _build(model, batches[0])
        outputs = None
        for data in batches:
            outputs = steps(without_optionals(data))
        return outputs

    return train_function


def _train_function(
    model: keras.Model, steps: decorator.Optimized, uneven: UnevenEpochs
) -> Callable[[Any], Any]:
    """Returns the function that Keras calls for every `steps_per_execution` batches."""

    def train_function(iterator: Any) -> Any:
        # Fetched outside the graph, so that the end of the data is no failed step.
        batches = tuple(map(without_optionals, take(iterator, model.steps_per_execution)))
        if not batches:
            raise StopIteration
        _build(model, batches[0])
        uneven.exchange()
        is_several = 1 < len(batches) == model.steps_per_execution
        can_join = is_several and steps.runs_several and not uneven.differ
        if can_join and uneven.agree(_are_alike(batches)):
            uneven.count(len(batches))
            return steps.several(len(batches), batches)
        # Tuning measures single steps, other strategies than data parallelism run them, a graph for
        # the last few steps would be used once, and all steps of a graph have one weight.
        outputs = None
        for data in batches:
            outputs = uneven.step(lambda data: steps((data,)), data)
        return outputs

    return train_function


def _build(model: keras.Model, data: Any) -> None:
    """Creates the variables that Keras' own training step would create in its first trace.

    These are optimizer slots and variables of metrics. TensorFlow traces a step twice that creates
    variables. A `train_step` of the model's own may need others.
    """
    metrics = model._compile_metrics
    is_built = model.optimizer.built and (metrics is None or metrics.built)
    if is_built or type(model).train_step is not keras.Model.train_step:
        return
    data = without_optionals(data)
    if all(isinstance(part, tf.Tensor | None) for part in tf.nest.flatten(data)):
        with contextlib.suppress(Exception):  # of the model's layers; the step would raise it again
            model._symbolic_build(data_batch=data)


def _are_alike(batches: tuple[Any, ...]) -> bool:
    """Returns whether one trace fits all batches, as one plan covers one trace."""
    first, *others = batches
    try:
        for other in others:
            tf.nest.assert_same_structure(first, other, expand_composites=True)
    except (TypeError, ValueError):
        return False
    return all(_kinds(other) == _kinds(first) for other in others)


def _kinds(batch: Any) -> list[Any]:
    """Returns dtypes and shapes of all tensors, also of the parts of ragged and sparse ones."""
    return [
        # The type stands for None (no sample weights) and for its replacement in tf.data.
        (getattr(part, "dtype", type(part)), getattr(part, "shape", None))
        for part in tf.nest.flatten(batch, expand_composites=True)
    ]
