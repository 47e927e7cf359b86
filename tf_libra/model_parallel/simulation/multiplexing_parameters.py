"""Parameters of multiplexing (DeepPool, section 5): mechanisms, slowdowns, the background job.

`background_operators` derives from them what a device's background launches, in order.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from tf_libra.internal import validation
from tf_libra.internal.values import AtLeastOne, Count, NonNegative, Positive, Value


def _check_rate(name: str, value: Any) -> float:
    rate = validation.real(name, value, above=0)
    if rate > 1:
        raise ValueError(f"{name} must be at most 1, got {rate!r}")
    return rate


@dataclass(frozen=True, kw_only=True)
class Interference(Value):
    """Slowdowns of each job while the other job runs on the same device.

    Attributes:
      synchronize_slowdown: slowdown of the foreground's all-reduce. DeepPool, section 5: it "more
        than doubles in execution time when another task is run on the same GPU".
      transition_slowdown: slowdown of the foreground's transitions, which use NCCL as well. Not
        given in the paper; set to the all-reduce's.
      compute_slowdown: slowdown of the foreground's computation under stream priorities. The paper
        draws it (Fig. 12) and gives no number; "largely effective".
      unprioritized_slowdown: least slowdown of any foreground span without working stream
        priorities. Not given in the paper; 2: each job gets half.
      background_compute: seconds of background work per second of foreground computation without
        `utilization`. Not given in the paper.
      background_communication: seconds of background work per second of transitions and
        all-reduces. Not given in the paper.

    Raises:
      ValueError: a slowdown below 1, or a background rate outside (0, 1].
    """

    synchronize_slowdown: AtLeastOne = 2.0
    transition_slowdown: AtLeastOne = 2.0
    compute_slowdown: AtLeastOne = 1.1
    unprioritized_slowdown: AtLeastOne = 2.0
    background_compute: Annotated[float, _check_rate] = 0.5
    background_communication: Annotated[float, _check_rate] = 0.5


@dataclass(frozen=True, kw_only=True)
class Multiplexing(Value):
    """Enabled mechanisms of DeepPool.

    Attributes:
      max_outstanding: most background graphs that are launched and not yet complete (pacing); None:
        no bound.
      operators_per_graph: consecutive background operators per launch (split graphs); None: the
        whole iteration.
      priorities: the foreground's stream has priority. Has no effect without `max_outstanding`.
      max_slowdown: largest slowdown of a span that overlaps the background (feedback). The
        background is paused during slower spans. None: no feedback.
      launch_seconds: host seconds per launch, hidden while another launch is outstanding ("several
        microseconds").

    Raises:
      ValueError: a number out of its range.
    """

    max_outstanding: Count | None = 2
    operators_per_graph: Count | None = 1
    priorities: bool = True
    max_slowdown: AtLeastOne | None = 1.5
    launch_seconds: NonNegative = 5e-6


@dataclass(frozen=True)
class BackgroundJob(Value):
    """Background job of each device.

    Attributes:
      operator_seconds: seconds of each operator of an iteration without the foreground, in order.
      batch: examples per iteration.

    Raises:
      ValueError: no operator, a time that is not positive, an infinite sum, or no examples.
    """

    operator_seconds: tuple[Positive, ...]
    batch: Count

    def _validate(self) -> None:
        if not self.operator_seconds:
            raise ValueError("operator_seconds must hold at least one operator, got none")
        validation.real("the sum of operator_seconds", sum(self.operator_seconds))

    @property
    def iteration_seconds(self) -> float:
        """Seconds of an iteration without the foreground."""
        return sum(self.operator_seconds)


@dataclass(frozen=True)
class Operator:
    """Operator of the background.

    Attributes:
      seconds: seconds without the foreground, including host time that the launch does not hide.
      work: seconds of the operator itself.
      last: True for an operator that ends the launches that a foreground launch cannot overtake.
    """

    seconds: float
    work: float
    last: bool


def background_operators(
    background: BackgroundJob, how: Multiplexing
) -> tuple[list[Operator], float]:
    """Returns the operators of a background iteration, and the host seconds after each launch.

    A foreground launch cannot overtake operators up to the next one that is `last`.
    """
    operators = background.operator_seconds
    count = len(operators)
    per_graph = count if how.operators_per_graph is None else how.operators_per_graph
    # With one outstanding launch the host's time is exposed; more launches hide it if possible.
    hidden = how.max_outstanding != 1
    together = 1
    if how.max_outstanding is None:
        together = count
    elif not how.priorities:
        together = how.max_outstanding
    found = []
    for graph, start in enumerate(range(0, count, per_graph)):
        stop = min(start + per_graph, count)
        uncovered = max(0.0, how.launch_seconds - sum(operators[start:stop])) if hidden else 0.0
        for index in range(start, stop):
            ends = index == stop - 1
            last = ends and ((graph + 1) % together == 0 or stop == count)
            seconds = operators[index] + (uncovered if ends else 0.0)
            found.append(Operator(seconds, operators[index], last))
    return found, 0.0 if hidden else how.launch_seconds
