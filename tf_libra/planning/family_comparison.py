"""Families of strategies side by side: predicted, measured in trials, and why left out."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal import formatting, validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Count, Natural, NonNegative, Positive, Value
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.specs.layer_graph import LayerGraph


@dataclass(frozen=True)
class FamilyRow(Value):
    """One family.

    Attributes:
      name: "data parallelism", or name of the family's strategy.
      predicted_seconds: predicted step; None if nothing predicts it.
      measured_seconds: median step in trials; None if it was not tried.
      left_out: why it was not tried, in a clause; empty if it was, or may be.
      is_bound: True if the predicted step is only the largest possible one.
      is_slow: True if it was left out because it is slow, and so may win with other links.
      arguments: arguments of its strategy that predictions chose, such as "num_microbatches=8".
    """

    name: str
    predicted_seconds: NonNegative | None = None
    measured_seconds: Positive | None = None
    left_out: str = ""
    is_bound: bool = False
    is_slow: bool = False
    arguments: str = ""

    SPARSE: ClassVar = ("arguments",)

    @property
    def label(self) -> str:
        """Name with the chosen arguments."""
        return f"{self.name} ({self.arguments})" if self.arguments else self.name

    @property
    def seconds(self) -> float:
        """Measured step, or else the predicted one; infinite if neither is known."""
        known = self.predicted_seconds if self.measured_seconds is None else self.measured_seconds
        return math.inf if known is None else known

    def is_comparable_to(self, other: "FamilyRow") -> bool:
        """Returns whether the steps of both are measured, or both predicted."""
        is_alike = (self.measured_seconds is None) == (other.measured_seconds is None)
        return is_alike and self.seconds < math.inf and 0 < other.seconds < math.inf


@dataclass(frozen=True)
class TrialCost(Value):
    """Cost of trials, whose steps train.

    Attributes:
      num_steps: number of their steps, tuning included.
      seconds: seconds of these steps.
      share: share of the seconds of all steps so far.

    Raises:
      ValueError: the share is above 1.
    """

    num_steps: Count
    seconds: NonNegative
    share: NonNegative

    def _validate(self) -> None:
        if self.share > 1:
            raise ValueError(f"share must be at most 1, got {self.share}")

    def describe(self) -> str:
        """Returns the cost in one sentence."""
        steps = "1 step" if self.num_steps == 1 else f"{self.num_steps} steps"
        seconds, share = formatting.time(self.seconds), f"{100 * self.share:.1f} %"
        return f"trials took {steps}, {seconds}, {share} of training so far"


@dataclass(frozen=True)
class FamilyComparison(Document):
    """Families under which a step may be trained, and what predicts them.

    Attributes:
      num_workers: number of workers N.
      rows: families in the order of trials, data parallelism first.
      active: family that trains, or that is predicted to be the fastest; empty if unknown.
      one_worker: the fastest family of several workers against one worker; None if unknown.
      num_threads: communication threads at which predictions take the rate of links.
      batch: examples of the joint batch; 0 if layers were not measured.
      layers: measured layers for that batch, on the scale of steps in training; None if they were
        not measured.
      untimed: why the active family was chosen by prediction, in a clause; empty if it was not.
      trials: what trials have cost when this was written; None if there were none.

    Raises:
      ValueError: there is no such family as the active one, or a batch without layers.
    """

    num_workers: Count
    rows: tuple[FamilyRow, ...]
    active: str = ""
    one_worker: OneWorkerComparison | None = None
    num_threads: Count = 1
    batch: Natural = 0
    layers: LayerGraph | None = None
    untimed: str = ""
    trials: TrialCost | None = None

    FORMAT: ClassVar = "tf-libra families"
    INDENT: ClassVar = 1

    def _validate(self) -> None:
        names = [row.name for row in self.rows]
        if self.active and self.active not in names:
            raise ValueError(f"active must be one of {', '.join(names)}, got {self.active!r}")
        if self.layers is not None:
            validation.integer("batch", self.batch, minimum=1)
