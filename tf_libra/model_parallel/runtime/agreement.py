"""Agreement of all ranks before they exchange tensors: on arguments, and on work that may fail.

A rank that fails takes part in the next control message, with its error. So no rank waits for it,
and all ranks go on with another strategy.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from tf_libra.coordination import control_plane
from tf_libra.coordination.consistency_check import agree
from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.capture import step_arguments
from tf_libra.runtime.family_options import describe_error, first_failure
from tf_libra.runtime.protocol import TrialError

_Result = TypeVar("_Result")


def check_same_trace(
    control: Control, known: Sequence[tuple[Hashable, ...]], arguments: Any
) -> None:
    """Checks that all ranks have traced a step for their arguments, or none has; all call it.

    Otherwise one rank would trace the step, while others wait for its tensors.

    Args:
        control: reaches the other ranks.
        known: keys of the traces, in the order in which all ranks have made them.
        arguments: arguments of this rank.

    Raises:
        ValueError: on every rank: arguments are of different kinds.
    """
    key = step_arguments.trace_key(arguments)
    number = known.index(key) if key in known else -1
    if len({*control.all_gather(number)}) > 1:
        agree(control, {"arguments": step_arguments.signature(arguments)})
        raise ValueError("ranks pass Python objects of which some ranks know the trace")


class AgreeingControl:
    """Control plane whose messages also carry errors; see `Control` for all else."""

    def __init__(self, control: Control) -> None:
        """Wraps a control plane, on all ranks.

        Args:
            control: the control plane.
        """
        self._control = control

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped control plane."""
        return getattr(self._control, name)

    def all_gather(self, message: Any) -> list[Any]:
        """See `Control`.

        Raises:
            TrialError: on every rank: a rank has failed.
        """
        return self._exchange(message, "")

    def broadcast(self, message: Any = None, *, kind: str = "", sync_point: str = "") -> Any:
        """See `Control`; raises as `all_gather`."""
        first, *_ = self._exchange(message if self._control.rank == 0 else None, "")
        return first

    def together(self, call: Callable[[], _Result]) -> _Result:
        """Makes a call, and returns its result once all ranks have made it.

        It must not fail while other ranks wait for a tensor of this rank, except by an
        `EngineError`, which ends the job.

        Raises:
            TrialError: on every rank: the call has failed on a rank.
        """
        try:
            result = call()
        except TrialError:
            raise
        except Exception as error:
            if control_plane.lost(error) or isinstance(error, control_plane.EngineError):
                raise
            self._exchange(None, describe_error(error) or type(error).__name__)
            raise  # never: this rank has failed
        self.all_gather(None)
        return result

    def _exchange(self, message: Any, error: str) -> list[Any]:
        everyone = self._control.all_gather([message, error])
        failure = first_failure([text for _, text in everyone])
        if failure:
            raise TrialError(failure)
        return [theirs for theirs, _ in everyone]
