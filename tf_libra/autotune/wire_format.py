"""Wire format: the dtype to which plans may round float32 tensors between ranks."""

from dataclasses import dataclass

from tf_libra.internal.values import NonNegative, Value
from tf_libra.specs.plan import WireDtype


@dataclass(frozen=True)
class WireFormat(Value):
    """Lossy format that the user allows.

    Attributes:
      dtype: dtype in which float32 tensors may travel.
      rounding_per_byte: seconds of a core to round a byte of float32, and back.

    Raises:
      ValueError: a field is out of its range.
    """

    dtype: WireDtype
    rounding_per_byte: NonNegative = 0.0
