"""A model with its optimizer and its step for one device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

keras = tf.keras


@dataclass
class Trained:
    """A model with its optimizer.

    Attributes:
        call: returns the logits of inputs.
        loss: returns the loss for labels and logits: a mean over examples, plus terms of weights.
        variables: trained variables.
        optimizer: updates the trained variables.
        metric: metric of labels and logits; None if the step has none.
        norms: metric of the norm of all gradients and of the number of updates, or None.
        state: other variables that a step writes.
        scaled: returns the loss to differentiate, for a loss.
        keeps_rows: whether `accumulated`, for a single microbatch, applies sparse gradients.
    """

    call: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    variables: list[Any]
    optimizer: Any
    metric: Any = None
    norms: Any = None
    state: tuple[Any, ...] = ()
    scaled: Callable[[Any], Any] = lambda loss: loss
    keeps_rows: bool = False

    @property
    def every_variable(self) -> list[Any]:
        """All variables that a step writes: trained variables, state, slots, metrics."""
        counted = getattr(self.metric, "variables", [])
        return [*self.variables, *self.state, *self.optimizer.variables, *counted]

    def step(self, images: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = self.call(images)
            loss = self.loss(labels, logits)
            scaled = self.scaled(loss)
        gradients = tape.gradient(scaled, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        result = {"loss": loss, "logits": logits, "updates": self.optimizer.iterations}
        if self.metric is not None:
            self.metric.update_state(labels, logits)
            result["metric"] = self.metric.result()
        if self.norms is not None:
            self._measure(gradients)
            result["norms"] = self.norms.result()
        return result

    def flagged(self, images: Any, labels: Any, training: bool = True) -> dict[str, Any]:
        """Runs a step, or an evaluation if `training` is false."""
        if training:
            return self.step(images, labels)
        logits = self.call(images)
        result = {"loss": self.loss(labels, logits), "logits": logits}
        if self.metric is not None:
            self.metric.update_state(labels, logits)
            result["metric"] = self.metric.result()
        return result

    def _measure(self, gradients: list[Any]) -> None:
        self.norms.update_state(tf.linalg.global_norm(gradients))
        self.norms.update_state(self.optimizer.iterations)

    def accumulated(self, images: Any, labels: Any, num_microbatches: int) -> dict[str, Any]:
        """Returns the outputs of one process that accumulates the same microbatches."""
        losses, logits, sums = [], [], None
        pairs = zip(
            tf.split(images, num_microbatches), tf.split(labels, num_microbatches), strict=True
        )
        for inputs, wanted in pairs:
            with tf.GradientTape() as tape:
                logits.append(self.call(inputs))
                losses.append(self.loss(wanted, logits[-1]))
                scaled = self.scaled(losses[-1])
            gradients = tape.gradient(scaled, self.variables)
            if not self.keeps_rows:
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            if self.metric is not None:
                self.metric.update_state(wanted, logits[-1])
            sums = (
                gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
            )
        if num_microbatches > 1:
            sums = [total / num_microbatches for total in sums]
        self.optimizer.apply_gradients(zip(sums, self.variables, strict=True))
        result = {
            "loss": tf.add_n(losses) / num_microbatches,
            "logits": tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *logits),
            "updates": self.optimizer.iterations,
        }
        if self.metric is not None:
            result["metric"] = self.metric.result()
        if self.norms is not None:
            self._measure(sums)
            result["norms"] = self.norms.result()
        return result


cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def from_keras(model: Any, optimizer: Any, training: bool = True, **fields: Any) -> Trained:
    def loss(labels: Any, logits: Any) -> Any:
        found = cross_entropy(labels, logits)
        return found + tf.add_n(model.losses) if model.losses else found

    return Trained(
        lambda inputs: model(inputs, training=training),
        loss, model.trainable_variables, optimizer,
        state=tuple(model.non_trainable_variables), **fields,
    )  # fmt: skip
