"""One layer of a step, and layers made from columns of their costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from tf_libra.internal import validation
from tf_libra.internal.values import NonNegative, Value


@dataclass(frozen=True)
class Layer(Value):
    """Costs of one layer.

    Attributes:
      name: unique within a graph.
      forward_seconds: p^f, forward computation of one microbatch on one device, at least 0.
      backward_seconds: p^b, backward computation of one microbatch on one device, at least 0.
      parameter_bytes: alpha, the size of its parameters and of their gradients.
      forward_seconds_by_share: forward seconds for each of the graph's `input_shares`; empty if
        time is proportional to the input's size.
      backward_seconds_by_share: backward seconds for each of the graph's `input_shares`; empty if
        time is proportional to the input's size.
      update_seconds: seconds of its parameters' update, once per iteration, on every device with
        the layer; the paper's model has no updates.
      deferred_seconds: seconds of the gradients that one device computes once per iteration, for
        the examples of all microbatches; not in `backward_seconds`. Replicas take equal shares.

    Raises:
      ValueError: a number is negative or not finite.
    """

    name: str
    forward_seconds: NonNegative
    backward_seconds: NonNegative
    parameter_bytes: NonNegative
    forward_seconds_by_share: tuple[NonNegative, ...] = ()
    backward_seconds_by_share: tuple[NonNegative, ...] = ()
    update_seconds: NonNegative = 0.0
    deferred_seconds: NonNegative = 0.0

    SPARSE: ClassVar = (
        "forward_seconds_by_share",
        "backward_seconds_by_share",
        "update_seconds",
        "deferred_seconds",
    )


def layers_from_columns(
    forward_seconds: ArrayLike,
    backward_seconds: ArrayLike,
    parameter_bytes: ArrayLike,
    names: Sequence[str] | None,
    shares: Sequence[Any],
    update_seconds: ArrayLike | None,
    deferred_seconds: ArrayLike | None,
) -> tuple[Layer, ...]:
    """Returns layers, one for each entry of the columns; see `LayerGraph.chain`.

    Raises:
      ValueError: columns of different lengths, or a value that `Layer` rejects.
    """
    forward = validation.sequence("forward_seconds", forward_seconds)
    backward = validation.sequence("backward_seconds", backward_seconds)
    parameters = validation.sequence("parameter_bytes", parameter_bytes)
    if names is None:
        labels: tuple[Any, ...] = tuple(f"layer_{i}" for i in range(len(forward)))
    else:
        labels = validation.sequence("names", names)
    zeros = [0.0] * len(forward)
    updates = validation.sequence(
        "update_seconds", zeros if update_seconds is None else update_seconds
    )
    deferred = validation.sequence(
        "deferred_seconds", zeros if deferred_seconds is None else deferred_seconds
    )
    for name, column in (
        ("backward_seconds", backward),
        ("parameter_bytes", parameters),
        ("update_seconds", updates),
        ("deferred_seconds", deferred),
        ("names", labels),
    ):
        if len(column) != len(forward):
            raise ValueError(
                f"{name} must have one entry per layer: forward_seconds has {len(forward)}, "
                f"got {len(column)}"
            )
    layers = []
    for index, label in enumerate(labels):
        forwards: tuple[Any, ...] = ()
        backwards: tuple[Any, ...] = ()
        whole = (forward[index], backward[index])
        if shares:
            forwards = validation.sequence(f"forward_seconds[{index}]", whole[0])
            backwards = validation.sequence(f"backward_seconds[{index}]", whole[1])
            for name, row in (("forward_seconds", forwards), ("backward_seconds", backwards)):
                if len(row) != len(shares):
                    raise ValueError(
                        f"{name}[{index}] must have one entry per input share: {len(shares)}, "
                        f"got {len(row)}"
                    )
            whole = (forwards[-1], backwards[-1])
        try:
            layers.append(
                Layer(
                    label, *whole, parameters[index], forwards, backwards, updates[index],
                    deferred[index],
                )
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"layer {index}: {error}") from None
    return tuple(layers)
