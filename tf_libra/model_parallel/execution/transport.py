"""Interface through which stages send tensors between ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Transport(Protocol):
    """Carries tensors. Names tell apart what is under way between two ranks at a time."""

    @property
    def rank(self) -> int:
        """This process, from 0."""
        ...

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        """Sends; does not wait for the other rank to receive."""
        ...

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        """Waits for a tensor, until a deadline.

        Raises:
            EngineError: a rank is gone or late; says who waited for whom.
        """
        ...

    def expect(
        self, dtype: Any, shape: Sequence[int], from_rank: int, name: str
    ) -> Callable[[], Any]:
        """Begins to receive while something else is computed; what is returned waits, as above."""
        ...

    def all_reduce(self, tensor: Any, ranks: Sequence[int], name: str) -> Any:
        """The sum over these ranks, all of which call it. Errors as for `receive`."""
        ...
