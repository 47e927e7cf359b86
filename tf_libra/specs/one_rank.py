"""Plan of a step that one rank runs for all: it trains the joint batch, and the others wait."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Count, Natural, Positive


@dataclass(frozen=True)
class OneRankPlan(Document):
    """The rank that trains the joint batch of all ranks.

    Attributes:
      rank: the rank that computes.
      num_workers: number of ranks of the job.
      seconds: by rank, the measured computation of one step; empty if none was measured.

    Raises:
      ValueError: the rank is not one of the job, or there is a time for some ranks only.
    """

    rank: Natural
    num_workers: Count
    seconds: tuple[Positive, ...] = ()

    FORMAT: ClassVar = "tf-libra one-rank plan"

    def _validate(self) -> None:
        validation.integer("rank", self.rank, 0, self.num_workers - 1)
        if len(self.seconds) not in (0, self.num_workers):
            raise ValueError(
                f"seconds must be one per rank, {self.num_workers}, or none, got"
                f" {len(self.seconds)}"
            )
