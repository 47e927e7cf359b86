"""Properties of one trace of a training function, read once from its graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_libra.capture import traced_graph
from tf_libra.capture.dataflow.sources import SourceFlow, flow
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.capture.instrumented_function import Trace
from tf_libra.capture.unconditional_reduces import UnconditionalReduces, count_unconditional_reduces
from tf_libra.capture.variables import handles
from tf_libra.variable_sync.bound_variables import BoundVariable, flat_arguments, held


@dataclass(eq=False)
class KnownTrace:
    """One trace, and what its graph tells.

    Attributes:
        trace: what it does with gradients.
        met: sets of variables, given as arguments, of which the ranks have talked; by identity.
    """

    trace: Trace
    met: set[tuple[int, ...]] = field(default_factory=set)
    _graph: traced_graph.TracedGraph | None = None
    _certain: UnconditionalReduces | None = None
    _flow: SourceFlow | None = None

    @property
    def marked(self) -> tuple[ReducedGradient, ...]:
        """The gradients that it all-reduces."""
        return self.trace.marked

    @property
    def left(self) -> dict[str, str]:
        """Gradients that it leaves to others, with the reasons."""
        return self.trace.left

    def certain(self, concrete: Any) -> UnconditionalReduces:
        """Returns the all-reduces that every execution is certain to make."""
        if self._certain is None:
            self._certain = count_unconditional_reduces(self._read(concrete))
        return self._certain

    def flow(self, concrete: Any, touched: Sequence[BoundVariable]) -> SourceFlow:
        """Returns what flows into the trace's variables.

        Args:
            concrete: the trace.
            touched: by a call; of another call only the values are others.
        """
        if self._flow is None:
            numbers = [one.index for one in touched if one.is_variable or one.is_number]
            self._flow = flow(self._read(concrete), numbers)
        return self._flow

    def _read(self, concrete: Any) -> traced_graph.TracedGraph:
        if self._graph is None:
            self._graph = traced_graph.read(concrete.graph)
        return self._graph


@dataclass(frozen=True)
class Call:
    """A trace, called with certain arguments.

    Attributes:
        trace: what is known of the trace.
        concrete: the trace as TensorFlow has it.
        arguments: its inputs that are no captures, see `flat_arguments`.
    """

    trace: KnownTrace
    concrete: Any
    arguments: list[Any]

    @classmethod
    def of(cls, trace: KnownTrace, concrete: Any, function: Any, args: Any, kwargs: Any) -> "Call":
        """A call of a `tf.function`."""
        return cls(trace, concrete, flat_arguments(function, concrete, args, kwargs))

    @property
    def given(self) -> tuple[int, ...]:
        """Identities of the variables that are arguments."""
        return tuple(
            int(handle._id)
            for one in self.arguments
            if isinstance(one, tf.Variable)
            for handle in handles(one)
        )

    def touched(self) -> tuple[BoundVariable, ...]:
        """All variables that it can touch, and tensors that were captured."""
        return held(self.concrete, self.arguments)
