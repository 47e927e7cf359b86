"""Buffers: variables that no gradient trains and no step writes, such as statistics of layers.

Examples are the moving statistics of a frozen `BatchNormalization`, or the statistics of an adapted
`Normalization`. Ranks with other values predict differently. A difference may be intended, as for a
variable that holds the rank's part of the data, so differences are logged and not copied.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.automatic_names import with_names_of
from tf_libra.capture.variables import handles, is_random_state, plain, variable_name
from tf_libra.coordination.control_plane import Control
from tf_libra.variable_sync.bound_variables import BoundVariable, matches
from tf_libra.variable_sync.replication_analysis import Classification, Replication

# Larger buffers, such as replay memories, are sampled at equal distances.
_MAX_ELEMENTS = 1 << 18


@dataclass
class Buffers:
    """The buffers that one training function has used.

    Attributes:
        local: names, patterns or variables that the user declares rank-local.
    """

    local: Sequence[Any] = ()
    _known: set[int] = field(default_factory=set, init=False)

    def find_differing(
        self,
        control: Control,
        call: Sequence[BoundVariable],
        classes: Mapping[str, Classification],
        weights: Sequence[Any] = (),
    ) -> list[str]:
        """Compares the buffers that are new between ranks; all ranks call it.

        Args:
            control: reaches the other ranks.
            call: variables that the call of a step can touch.
            classes: classification of each variable of the call, by name.
            weights: weights of the model, whether the step touches them or not.

        Returns:
            Names of buffers that exist on all ranks and have different values.

        Raises:
            EngineError: a rank is gone.
        """
        mine = {}
        for variable in [*_read_only(call, classes), *untouched(call, weights)]:
            if (
                variable.key not in self._known
                and variable.is_number
                and not matches(variable, self.local)
            ):
                self._known.add(variable.key)
                mine[variable.name] = digest_sample(variable)
        everyone = control.all_gather(mine)
        names = list(everyone[0])
        first, *others = (with_names_of(names, values) for values in everyone)
        return [
            name
            for name, digest in first.items()
            if all(name in other for other in others)
            and any(other[name] != digest for other in others)
        ]


def _read_only(
    call: Sequence[BoundVariable], classes: Mapping[str, Classification]
) -> Iterator[BoundVariable]:
    return (
        variable
        for variable in call
        if variable.is_variable and classes[variable.name].replication is Replication.DATA
    )


def untouched(call: Sequence[BoundVariable], weights: Sequence[Any]) -> Iterator[BoundVariable]:
    """Yields the weights that a call cannot touch, such as those that its graph holds as constants.

    Args:
        call: variables that the call can touch.
        weights: weights of the model.
    """
    touched = {variable.key for variable in call}
    for weight in map(plain, weights):
        variable = BoundVariable(
            -1, variable_name(weight), handles(weight)[0], weight.dtype, weight.shape
        )
        if variable.key not in touched and not is_random_state(weight):
            yield variable


def digest_sample(buffer: BoundVariable) -> str:
    """Returns a digest of dtype, shape and bits of a buffer; large buffers are sampled."""
    flat = tf.reshape(buffer.read_value(), [-1])
    sample = np.ascontiguousarray(flat[:: 1 + flat.shape[0] // _MAX_ELEMENTS].numpy())
    digest = hashlib.blake2b(buffer.kind.encode(), digest_size=16)
    digest.update(sample.view(np.uint8).data if sample.size else b"")
    return digest.hexdigest()
