"""What is done at the end of every trace of a training function: what ranks must have alike."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_libra.ranks.agreement import agree
from tf_libra.ranks.control import Control
from tf_libra.session.trace import KnownTrace
from tf_libra.story.story import Story
from tf_libra.tracing.marked_function import Trace
from tf_libra.tracing.marks import MarkedGradient


class Traces:
    """The traces that one training function has so far, in the job that there is now."""

    def __init__(self, name: str) -> None:
        """Knows no trace.

        Args:
            name: of the training function, for messages.
        """
        self._name = name
        self._known: WeakKeyDictionary[tf.Graph, KnownTrace] = WeakKeyDictionary()
        self._agreed: set[tuple[MarkedGradient, ...]] = set()
        self._warned: set[str] = set()

    def of(self, concrete: Any) -> KnownTrace:
        """What is known of a trace, as TensorFlow has it."""
        return self._known[concrete.graph]

    def add(
        self, trace: Trace, control: Control | None, story: Story, meet: Callable[[], None] | None
    ) -> None:
        """Adds the trace whose graph is being built; what it all-reduces is compared.

        Args:
            trace: what it does with gradients.
            control: reaches the other ranks; None where nobody is met, and nothing compared.
            story: is told what no plan is about.
            meet: returns when all ranks are at a new trace, which may be at a step already with
                what they have traced before; None for the first trace.

        Raises:
            ValueError: on every rank: the first difference.
            EngineError: a rank is gone.
        """
        self._known[tf_ops.get_default_graph()] = KnownTrace(trace)
        self._warn_of(trace, story)
        if trace.asks_for_nothing and self._agreed:
            story.log.info(
                "trace: %s takes no gradient in a new trace, which runs as it is", self._name
            )
            return
        marked = trace.marked
        if marked in self._agreed or control is None:
            return
        if meet is not None:
            meet()
        agree(
            control,
            {
                "averaged gradients": [one.name for one in marked],
                "gradient": {one.name: f"{one.dtype} {one.shape}" for one in marked},
                "gathered": {one.name: one.is_gathered for one in marked},
            },
        )
        self._agreed.add(marked)

    def _warn_of(self, trace: Trace, story: Story) -> None:
        """Says once what no plan is about, though a script may take it for averaged."""
        in_datasets = [one.name for one in trace.marked if one.in_dataset]
        for names, what in (
            (trace.missing, "%s computes no gradient for %s: it is None, as without TF-Libra"),
            (trace.jacobians, "%s returns gradients per example of %s, of each rank's own data"),
            (
                in_datasets,
                "%s computes gradients in a function of tf.data, which no plan reaches:"
                " %s are all-reduced one by one",
            ),
        ):
            if names and what not in self._warned:
                self._warned.add(what)
                story.log.warning(what, self._name, _some(names))


def _some(names: Sequence[str], most: int = 5) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
