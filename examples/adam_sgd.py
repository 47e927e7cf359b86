"""The optimizer of AIACC-Training, section IV, on Keras: Adam and SGD mixed, with linear decay.

    tf-libra run -np 2 python examples/adam_sgd.py --strategy aiacc

The paper says that the two are combined, and not how. Here the share of Adam in an update falls
linearly from 1 to 0, so that training begins as Adam does and ends as SGD does; the learning rate
falls linearly, too, instead of in steps. The rest is `keras_digits.py`.
"""

import keras
from absl import app, flags
from keras import ops
from keras_digits import build_model, load_data

import tf_libra.keras

_RATE = flags.DEFINE_float("rate", 3e-3, "Learning rate at the beginning.", lower_bound=0.0)


class AdamSgd(keras.optimizers.Optimizer):
    """Updates by `share * Adam + (1 - share) * SGD`, the share falling from 1 to 0.

    Args:
      learning_rate: of both, a number or a schedule.
      mixing_steps: after how many steps Adam has no share any more.
      sgd_scale: how many times SGD's step is longer than the gradient times the learning rate:
        Adam's steps are about 1 per weight, whatever the gradient.
      beta_1: decay of the gradient's mean.
      beta_2: decay of its square's.
      epsilon: keeps Adam from dividing by 0.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        mixing_steps: int = 1000,
        sgd_scale: float = 10.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "adam_sgd",
        **kwargs,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        if mixing_steps < 1:
            raise ValueError(f"mixing_steps must be at least 1, got {mixing_steps}")
        self.mixing_steps = mixing_steps
        self.sgd_scale = sgd_scale
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables) -> None:
        if self.built:
            return
        super().build(variables)
        self.means = [self.add_variable_from_reference(v, name="mean") for v in variables]
        self.squares = [self.add_variable_from_reference(v, name="square") for v in variables]

    def update_step(self, gradient, variable, learning_rate) -> None:
        dtype = variable.dtype
        gradient, rate = ops.cast(gradient, dtype), ops.cast(learning_rate, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        index = self._get_variable_index(variable)
        mean, square = self.means[index], self.squares[index]
        self.assign(mean, self.beta_1 * mean + (1 - self.beta_1) * gradient)
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))
        corrected = mean / (1 - ops.power(ops.cast(self.beta_1, dtype), step))
        spread = ops.sqrt(square / (1 - ops.power(ops.cast(self.beta_2, dtype), step)))
        adam = corrected / (spread + self.epsilon)
        share = ops.maximum(1 - (step - 1) / self.mixing_steps, 0)
        self.assign_sub(variable, rate * (share * adam + (1 - share) * self.sgd_scale * gradient))

    def get_config(self) -> dict:
        names = ("mixing_steps", "sgd_scale", "beta_1", "beta_2", "epsilon")
        return super().get_config() | {name: getattr(self, name) for name in names}


def linear_decay(rate: float, num_steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """From `rate` to 0 in so many steps."""
    return keras.optimizers.schedules.PolynomialDecay(rate, num_steps, end_learning_rate=0.0)


def main(_) -> None:
    keras.utils.set_random_seed(0)
    (images, labels), test = load_data()
    # Equally many images for every rank, and so equally many steps.
    count = len(images) // tf_libra.size()
    mine = slice(tf_libra.rank() * count, (tf_libra.rank() + 1) * count)
    images, labels = images[mine], labels[mine]
    batch, epochs = flags.FLAGS.batch, flags.FLAGS.epochs
    num_steps = epochs * -(-len(images) // batch)
    model = build_model()
    model.compile(
        AdamSgd(linear_decay(_RATE.value, num_steps), mixing_steps=num_steps),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    tf_libra.keras.optimize(model, flags.FLAGS.strategy)
    model.fit(images, labels, batch_size=batch, epochs=epochs, verbose=0)
    if tf_libra.rank() == 0:
        loss, accuracy = model.evaluate(*test, verbose=0)
        print(f"test loss {loss:.4f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    app.run(main)
