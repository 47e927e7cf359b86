"""Traces of a training function, compared between ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from tf_libra.capture.automatic_names import renames_to_first
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.sources import SourceFlow, find_sources
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.capture.instrumented_function import Trace
from tf_libra.coordination.consistency_check import (
    NAMES_ADVICE,
    Statement,
    check_equal,
    exchange,
    first_difference,
)
from tf_libra.coordination.control_plane import Control
from tf_libra.internal.formatting import listed
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.execution_check import UnconditionalReduces, count_unconditional_reduces
from tf_libra.runtime.update_sharding import UpdateSharding, find_update_sharding
from tf_libra.variable_sync.bound_variables import (
    BoundVariable,
)


@dataclass(eq=False)
class KnownTrace:
    """One trace, and the facts that are read once from its graph.

    Attributes:
        trace: the use that it makes of gradients.
        compared: sets of variables, passed as arguments, that the ranks have compared; by identity.
    """

    trace: Trace
    compared: set[tuple[int, ...]] = field(default_factory=set)
    _graph: traced_graph.TracedGraph | None = None
    _certain: UnconditionalReduces | None = None
    _flow: SourceFlow | None = None
    _sharding: UpdateSharding | None = None

    @property
    def marked(self) -> tuple[ReducedGradient, ...]:
        """Gradients that the trace all-reduces."""
        return self.trace.reduced

    @property
    def left(self) -> dict[str, str]:
        """Reasons for the gradients that another component reduces, by name."""
        return self.trace.left

    def certain(self, concrete: Any) -> UnconditionalReduces:
        """Returns the all-reduces that every execution performs."""
        if self._certain is None:
            self._certain = count_unconditional_reduces(self._read(concrete))
        return self._certain

    def flow(self, concrete: Any, touched: Sequence[BoundVariable]) -> SourceFlow:
        """Returns the sources of what the trace writes to its variables.

        Args:
            concrete: the trace.
            touched: variables of a call. Other calls differ only in values.
        """
        if self._flow is None:
            numbers = [bound.index for bound in touched if bound.is_variable or bound.is_number]
            self._flow = find_sources(self._read(concrete), numbers)
        return self._flow

    def sharding(
        self,
        concrete: Any,
        touched: Sequence[BoundVariable],
        overlaps_calls: bool,
        is_exact: bool,
    ) -> UpdateSharding:
        """Returns the updates that each rank can make for the parts that it owns.

        Args:
            concrete: the trace.
            touched: variables of a call.
            overlaps_calls: whether gathers go on after a call; the same for all calls.
            is_exact: as for `find_update_sharding`; the same for all calls.
        """
        if self._sharding is None:
            self._sharding = find_update_sharding(
                concrete, self.marked, touched, overlaps_calls, is_exact
            )
        return self._sharding

    def _read(self, concrete: Any) -> traced_graph.TracedGraph:
        if self._graph is None:
            self._graph = traced_graph.read(concrete.graph)
        return self._graph


class ConcreteTraces:
    """The traces of one training function in the current job, compared between ranks.

    Attributes:
        names: rank 0's names of variables that this rank's Keras has numbered differently.
        is_renamed: whether the last trace has shown that `names` are needed, so that all ranks
            trace again.
    """

    def __init__(self, name: str) -> None:
        """Begins without traces.

        Args:
            name: name of the training function, for messages.
        """
        self._name = name
        self._known: WeakKeyDictionary[tf.Graph, KnownTrace] = WeakKeyDictionary()
        self._agreed: set[tuple[ReducedGradient, ...]] = set()
        self._warned: set[str] = set()
        self.names: dict[str, str] = {}
        self.is_renamed = False

    def of(self, concrete: Any) -> KnownTrace:
        """Returns the facts about a trace, which is passed as TensorFlow's concrete function."""
        return self._known[concrete.graph]

    def add(
        self,
        trace: Trace,
        control: Control | None,
        reporter: RunReporter,
        wait_for_ranks: Callable[[], None] | None,
    ) -> None:
        """Adds the trace whose graph is being built, and compares its gradients between ranks.

        Args:
            trace: the use that it makes of gradients.
            control: reaches the other ranks; None if there are none.
            reporter: logs a warning for gradients that no plan covers.
            wait_for_ranks: waits until all ranks are at a new trace, since another rank may already
                be at a step with a trace it has; None for the first trace.

        Raises:
            ValueError: on every rank: the first difference.
            EngineError: a rank is gone.
        """
        self._known[tf.compat.v1.get_default_graph()] = KnownTrace(trace)
        self._warn_of(trace, reporter)
        if trace.has_no_gradients and self._agreed:
            if not trace.local:
                reporter.log.info(
                    "trace: %s takes no gradient in a new trace, which runs as it is", self._name
                )
            return
        marked = trace.reduced
        if marked in self._agreed or control is None:
            return
        if wait_for_ranks is not None and not self.is_renamed:
            wait_for_ranks()
        statement: dict[str, Any] = {
            "averaged gradients": [gradient.name for gradient in marked],
            "gradient": {
                gradient.name: f"{gradient.dtype} {gradient.shape}" for gradient in marked
            },
            "gathered": {gradient.name: gradient.is_gathered for gradient in marked},
        }
        everyone = exchange(control, statement)
        if not self.is_renamed and self._match_names(everyone, control.rank, reporter):
            self.is_renamed = True
            return
        self.is_renamed = False
        check_equal(everyone, "" if _have_same_names(everyone) else NAMES_ADVICE)
        self._agreed.add(marked)

    def _match_names(self, everyone: Sequence[Statement], rank: int, reporter: RunReporter) -> bool:
        """Finds rank 0's names of gradients that differ in automatic numbers alone.

        Returns:
            Whether the ranks differ in names alone; the same on every rank.
        """
        found = renames_to_first([statement["averaged gradients"] for statement in everyone])
        renamed = [
            _renamed(statement, names) for statement, names in zip(everyone, found, strict=True)
        ]
        if not any(found) or first_difference(renamed) is not None:
            return False
        other = next(other for other, names in enumerate(found) if names)
        name, first = next(iter(found[other].items()))
        reporter.log.warning(
            "names: %r of rank %d is matched with %r of rank 0, and %d more, in the order of their"
            " automatic numbers; if these are different layers, name them explicitly",
            name, other, first, len(found[other]) - 1,
        )  # fmt: skip
        self.names.update(found[rank])
        return True

    def _warn_of(self, trace: Trace, reporter: RunReporter) -> None:
        """Warns, once per kind, of gradients that the user may take for averaged."""
        in_datasets = [gradient.name for gradient in trace.reduced if gradient.in_dataset]
        for names, message in (
            (trace.missing, "%s computes no gradient for %s: it is None, as without TF-Libra"),
            (trace.jacobians, "%s returns gradients per example of %s, of each rank's own data"),
            (
                in_datasets,
                "%s computes gradients in a function of tf.data, which no plan reaches:"
                " %s are all-reduced one by one",
            ),
            (
                trace.local,
                "%s has a trace in which the gradients of %s stay each rank's own, as under"
                " Horovod, which averages them in other traces and not in this one",
            ),
        ):
            if names and message not in self._warned:
                self._warned.add(message)
                reporter.log.warning(message, self._name, listed(names))


def _renamed(statement: Statement, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the statement of a rank with other names."""

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(name, name): item for name, item in value.items()}
        return [names.get(name, name) for name in value]

    return {key: rename(value) for key, value in statement.items()}


def _have_same_names(everyone: Sequence[Statement]) -> bool:
    return len({tuple(sorted(statement["averaged gradients"])) for statement in everyone}) == 1
