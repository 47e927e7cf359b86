"""The variables of one training function: compared between ranks when a call first touches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.capture.dataflow.sources import SourceFlow
from tf_libra.coordination.control_plane import Control
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.buffers import Buffers, untouched
from tf_libra.variable_sync.initial_broadcast import BroadcastResult, InitialBroadcast
from tf_libra.variable_sync.replication_analysis import Replication


@dataclass(frozen=True)
class VariableComparison:
    """Result of one comparison between ranks.

    Attributes:
        broadcast: replicated variables that got rank 0's values.
        differing_buffers: names of buffers that differ, which keep their values.
    """

    broadcast: BroadcastResult
    differing_buffers: tuple[str, ...]


class StepVariables:
    """Makes replicated variables equal before the first step that touches them."""

    def __init__(
        self, local: Sequence[Any], policy: str, weights: Callable[[], Sequence[Any]]
    ) -> None:
        """Begins without variables.

        Args:
            local: names, patterns or variables that the user declares rank-local.
            policy: the user's `broadcast_variables`.
            weights: returns the weights of the Keras model, whether steps touch them or not.
        """
        self._weights = weights
        self._broadcast = InitialBroadcast(local, policy)
        self._buffers = Buffers(local)

    def unmatched(self, touched: Sequence[BoundVariable]) -> list[str]:
        """Returns the user's patterns that match no variable of a call or of the model."""
        return self._broadcast.unmatched([*touched, *untouched(touched, self._weights())])

    def compare(
        self,
        control: Control,
        touched: Sequence[BoundVariable],
        flow: SourceFlow,
        wait_for_ranks: Callable[[], None] | None,
    ) -> VariableComparison | None:
        """Compares the variables of a call, if any is new to this function.

        Args:
            control: reaches the other ranks.
            touched: variables that the call can touch.
            flow: sources of what the call's trace writes.
            wait_for_ranks: waits for the other ranks to come to the same call; None if they are
                there, and compare their variables in any case.

        Returns:
            None if nothing was compared.

        Raises:
            ValueError: on every rank: the first difference that must not be broadcast.
            EngineError: a rank is gone.
        """
        classes = self._broadcast.classify(flow, touched)
        self._broadcast.note(touched, classes)
        if wait_for_ranks is not None:
            if self._broadcast.is_known(touched, classes):
                return None
            wait_for_ranks()
        broadcast = self._broadcast.compare(control, touched, classes)
        differing = self._buffers.find_differing(control, touched, classes, self._weights())
        return VariableComparison(broadcast, tuple(differing))

    def rank_local(self, flow: SourceFlow, touched: Sequence[BoundVariable]) -> list[BoundVariable]:
        """Returns the variables of a call that are computed from this rank's examples."""
        classes = self._broadcast.classify(flow, touched)
        own = (
            variable
            for variable in touched
            if classes[variable.name].replication is Replication.OWN
        )
        return [variable for variable in own if variable.is_variable]

    def chosen(self, flow: SourceFlow, touched: Sequence[BoundVariable]) -> list[BoundVariable]:
        """Returns what a call reads, and the script of each rank may choose: numbers alone."""
        classes = self._broadcast.classify(flow, touched)
        data = (
            variable
            for variable in touched
            if classes[variable.name].replication is Replication.DATA
        )
        return [variable for variable in data if variable.is_number]

    def check(self, control: Control) -> None:
        """Compares all replicated variables that still exist on every rank.

        Raises:
            ValueError: on every rank: the first variable that differs.
            EngineError: a rank is gone.
        """
        self._broadcast.check(control)
