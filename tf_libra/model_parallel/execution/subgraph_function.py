"""Subgraphs of a trace as functions that are called by the names of the trace's tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.model_parallel.execution.gradient_reduction import GradientReduction
from tf_libra.model_parallel.partition.subgraph import Subgraph
from tf_libra.model_parallel.partition.subgraph_extraction import SubgraphExtraction


@dataclass(frozen=True)
class SubgraphFunction:
    """A function of a part, which is called by names.

    Attributes:
        call: what runs.
        arguments: of the step, that it takes.
        takes: other tensors.
        sums: those that it goes on with, by the names of reductions.
        gives: what it returns.
        captures: placeholders of the captured tensors that it uses.
    """

    call: Callable[[Sequence[Any]], list[Any]]
    arguments: tuple[str, ...]
    takes: tuple[str, ...]
    sums: tuple[str, ...]
    gives: tuple[str, ...]
    captures: frozenset[str]

    @classmethod
    def of(
        cls,
        extraction: SubgraphExtraction,
        part: Subgraph,
        reducing: GradientReduction | None = None,
        replica: int = 0,
    ) -> "SubgraphFunction":
        """Makes it.

        Args:
            extraction: of the trace.
            part: what it computes.
            reducing: what becomes of its gradients; None: nothing.
            replica: of the stage.
        """
        takes = [*(f"{name}:0" for name in part.arguments), *part.takes]
        gives: tuple[str, ...] = part.gives
        sums: tuple[str, ...] = ()
        if reducing is not None:
            gives = (*(part.gives[place] for place in reducing.kept), *map(sum_of, reducing.names))
            sums = reducing.names if reducing.adds else ()
        return cls(
            extraction.function(part.ops, takes, part.gives, reducing, replica),
            part.arguments,
            part.takes,
            sums,
            gives,
            extraction.captures(part.ops, part.gives),
        )

    def __call__(
        self,
        arguments: Mapping[str, Any],
        values: Mapping[str, Any],
        sums: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Runs it.

        Args:
            arguments: the step's, by name.
            values: tensors by name.
            sums: by reduction, those over the microbatches before.

        Returns:
            By name what it gives, and by `sum_of` the sums.
        """
        given = [*(arguments[name] for name in self.arguments), *(values[n] for n in self.takes)]
        given += [(sums or {})[name] for name in self.sums]
        return dict(zip(self.gives, self.call(given), strict=True))


def sum_of(reduction: str) -> str:
    """Returns the key among values of the sum over microbatches, in the end their average."""
    return f"sum of {reduction}"
