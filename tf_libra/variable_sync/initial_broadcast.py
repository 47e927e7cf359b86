"""Initial broadcast: makes replicated variables equal on every rank."""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_libra.capture.automatic_names import renames_to_first
from tf_libra.capture.dataflow.sources import SourceFlow
from tf_libra.coordination.consistency_check import agree, first_difference
from tf_libra.coordination.control_plane import Control
from tf_libra.variable_sync.bound_variables import BoundVariable, broadcast, matches
from tf_libra.variable_sync.replication_analysis import (
    Classification,
    RankReport,
    Replication,
    Traits,
    classify,
    resolve_across_ranks,
)


@dataclass(frozen=True)
class BroadcastResult:
    """Result of a comparison of variables, and of the broadcast after it.

    Attributes:
        names: variables that differed, and got rank 0's values.
        num_compared: number of replicated variables that were compared.
    """

    names: tuple[str, ...]
    num_compared: int


@dataclass
class _Entry:
    name: str
    handle: "weakref.ref[Any]"
    bound: BoundVariable  # without its handle
    is_shared: bool
    constants: tuple[str, ...]


@dataclass
class InitialBroadcast:
    """Record of the variables that one training function has used.

    Attributes:
        local: names, patterns or variables that the user declares rank-local.
        policy: the user's `broadcast_variables`.
    """

    local: Sequence[Any] = ()
    policy: str = "first_use"
    _entries: dict[int, _Entry] = field(default_factory=dict, init=False)
    _names: Counter[str] = field(default_factory=Counter, init=False)

    def classify(
        self, flow: SourceFlow, call: Sequence[BoundVariable]
    ) -> dict[str, Classification]:
        """Classifies the variables of a call, by name, as far as this rank can tell."""
        variables = {
            variable.index: Traits(
                variable.trainable,
                variable.is_random_state or variable.is_own or matches(variable, self.local),
            )
            for variable in call
            if variable.is_variable
        }
        classes = classify(flow, variables)
        return {
            variable.name: classes.get(variable.index, Classification(Replication.DATA))
            for variable in call
        }

    def unmatched(self, call: Sequence[BoundVariable]) -> list[str]:
        """Returns the user's patterns that match none of these variables."""
        patterns = [variable for variable in self.local if isinstance(variable, str)]
        return [
            variable
            for variable in patterns
            if not any(matches(bound, [variable]) for bound in call)
        ]

    def is_known(
        self, call: Sequence[BoundVariable], classes: Mapping[str, Classification]
    ) -> bool:
        """Returns whether all variables of this call were compared before."""
        return all(
            self._is_known(variable, classes[variable.name])
            for variable in call
            if variable.is_variable
        )

    def _is_known(self, variable: BoundVariable, classification: Classification) -> bool:
        if (
            classification.replication in (Replication.OWN, Replication.DATA)
            or not variable.is_number
        ):
            return True
        entry = self._entries.get(variable.key)
        if entry is None:
            return False
        return entry.is_shared or classification.replication is not Replication.SHARED

    def note(self, call: Sequence[BoundVariable], classes: Mapping[str, Classification]) -> None:
        """Updates known variables by the classification of another trace."""
        for variable in call:
            entry = self._entries.get(variable.key)
            if entry is None:
                continue
            classified = classes[variable.name]
            counts = (
                classified.replication is Replication.DERIVED
                and classified.constants != entry.constants
            )
            if counts or classified.replication is Replication.OWN:
                # A variable that one trace makes rank-local stays so in traces that only read it.
                entry.is_shared = False

    def compare(
        self, control: Control, call: Sequence[BoundVariable], classes: Mapping[str, Classification]
    ) -> BroadcastResult:
        """Compares the variables of a call between ranks, and broadcasts; all ranks call it.

        Raises:
            ValueError: on every rank: the first difference that must not be broadcast.
            EngineError: a rank is gone.
        """
        numbers = [variable for variable in call if variable.is_number]
        statements = control.all_gather(self._statement(numbers, classes))
        # Keras numbers models per process, so other ranks may use other names than rank 0.
        found = renames_to_first([[name for name, *_ in rank] for rank in statements])
        everyone = [
            {
                names.get(name, name): (replication, [names.get(n, n) for n in sources], *rest)
                for name, replication, sources, *rest in rank
            }
            for rank, names in zip(statements, found, strict=True)
        ]
        mine = found[control.rank]
        numbers = [
            replace(variable, name=mine.get(variable.name, variable.name)) for variable in numbers
        ]
        classes = {mine.get(name, name): variable for name, variable in classes.items()}
        accounts = [
            {
                name: RankReport(Replication(replication), tuple(sources), tuple(constants), digest)
                for name, (replication, sources, constants, digest, _, _) in rank.items()
            }
            for rank in everyone
        ]
        self._compare_names(everyone)
        names = resolve_across_ranks(accounts)
        shared = [
            variable for variable in numbers if variable.is_variable and variable.name in names
        ]
        _compare(
            {"variable": {variable.name: rank[variable.name][4] for variable in shared}}
            for rank in everyone
        )
        differing = [
            variable
            for variable in shared
            if len({rank[variable.name].digest for rank in accounts}) > 1
        ]
        allowed = [variable for variable in differing if self._may_copy(variable.name, everyone)]
        rejected = {variable.name for variable in differing} - {
            variable.name for variable in allowed
        }
        _compare(
            (
                {"variable": {n: t.digest for n, t in rank.items() if n in rejected}}
                for rank in accounts
            ),
            self._advice(),
        )
        for variable in allowed:
            broadcast(control, variable)
        self._remember(numbers, classes, names)
        return BroadcastResult(tuple(variable.name for variable in allowed), len(shared))

    def _statement(
        self, numbers: Sequence[BoundVariable], classes: Mapping[str, Classification]
    ) -> list[list[Any]]:
        by_index = {variable.index: variable.name for variable in numbers}
        used = {i for classified in classes.values() for i in classified.computed_of}
        statement = []
        for variable in numbers:
            classified = classes[variable.name]
            # Large data on which no variable depends need no digest.
            matters = (
                classified.replication in (Replication.SHARED, Replication.DERIVED)
                or variable.index in used
            )
            entry = self._entries.get(variable.key)
            statement.append(
                [
                    variable.name,
                    classified.replication.value,
                    sorted(by_index.get(i, f"input {i}") for i in classified.computed_of),
                    list(classified.constants),
                    variable.digest() if matters else "",
                    variable.kind,
                    entry is not None and entry.is_shared,
                ]
            )
        return statement

    def _compare_names(self, everyone: Sequence[Mapping[str, tuple[Any, ...]]]) -> None:
        _compare(
            {
                "name of variable": [
                    name
                    for name, classified in rank.items()
                    if classified[0] == Replication.SHARED.value
                ]
            }
            for rank in everyone
        )

    def _may_copy(self, name: str, everyone: Sequence[Mapping[str, tuple[Any, ...]]]) -> bool:
        is_new = not all(rank[name][5] for rank in everyone)
        return self.policy == "always" or (self.policy == "first_use" and is_new)

    def _advice(self) -> str:
        if self.policy == "never":
            return (
                "; broadcast_variables='never' rejects this: leave it out to copy rank 0's values"
                " to all ranks, or list rank-local variables in local_variables"
            )
        return (
            "; they were equal before, so one rank has changed them, as by restoring a checkpoint:"
            " restore it on all ranks, pass broadcast_variables='always' to copy rank 0's values,"
            " or list rank-local variables in local_variables"
        )

    def _remember(
        self,
        numbers: Sequence[BoundVariable],
        classes: Mapping[str, Classification],
        shared: set[str],
    ) -> None:
        for variable in numbers:
            if not variable.is_variable:
                continue
            entry = self._entries.get(variable.key)
            if entry is None:
                # Two models may use the same names; all ranks use the models in the same order.
                before = self._names[variable.name]
                self._names[variable.name] += 1
                self._entries[variable.key] = _Entry(
                    f"{variable.name}@{before}" if before else variable.name,
                    weakref.ref(variable.tensor),
                    replace(variable, tensor=None),
                    variable.name in shared,
                    classes[variable.name].constants,
                )
            else:
                entry.is_shared = entry.is_shared or variable.name in shared

    def check(self, control: Control) -> None:
        """Compares all replicated variables that still exist on every rank.

        Raises:
            ValueError: on every rank: the first that differs.
            EngineError: a rank is gone.
        """
        mine = {}
        for entry in self._entries.values():
            handle = entry.handle()
            if entry.is_shared and handle is not None:
                mine[entry.name] = replace(entry.bound, tensor=handle)
        everyone = control.all_gather(list(mine))
        common = set.intersection(*(set(names) for names in everyone))
        agree(
            control,
            {"variable": {n: variable.digest() for n, variable in mine.items() if n in common}},
        )


def _compare(statements: Any, advice: str = "") -> None:
    difference = first_difference(list(statements))
    if difference is not None:
        raise ValueError(f"the ranks do not agree, nothing was exchanged: {difference}{advice}")
