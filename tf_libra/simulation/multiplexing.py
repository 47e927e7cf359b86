"""A foreground job under a burst plan, and a background job on every device (DeepPool 5).

The foreground's spans follow each other as planned. On each device a background job launches its
operators in graphs, over and over. What the two do to each other:

- While both run on a device, each is slower by the factors of `Interference`; a span of several
  devices is as slow as on the slowest.
- Devices do not preempt: a span that is ready waits for the background's operator in progress.
- The foreground's iteration is one launch, a CUDA graph. It waits for what the background has
  launched ahead of it: for the graph in progress where stream priorities work, for all that are
  outstanding where there are none, and for a whole background iteration where launches are not
  bounded, since then the queues that know no priorities are full of them.
- Beside spans that have been seen to suffer, the background is paused: it launches nothing until
  they have ended.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra import checks, units
from tf_libra.model.burst import KINDS, BurstPlan

# Seconds of work per second that the background does at least where it is not paused.
_LEAST_PACE = 0.01
# Operators of the background that a simulation may come to, over all that differ in what they do.
MAX_OPERATORS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Interference:
    """How much slower a job gets while the other runs on the same device.

    Attributes:
      synchronize_slowdown: of the foreground's all-reduce. DeepPool, section 5: it "more than
        doubles in execution time when another task is run on the same GPU".
      transition_slowdown: of the foreground's transitions, likewise NCCL's; not given in the paper,
        taken to be as that.
      compute_slowdown: of the foreground's computation under stream priorities. The paper draws it
        (Fig. 12) and gives no number; "largely effective".
      unprioritized_slowdown: of anything in the foreground that is less than this otherwise, where
        priorities are not used or do not work. Not given; 2: both get half.
      background_compute: seconds of work that the background does per second beside the
        foreground's computation, where `utilization` does not say. Not given.
      background_communication: the same beside transitions and all-reduces. Not given.

    Raises:
      ValueError: a slowdown below 1, or a pace outside (0, 1].
    """

    synchronize_slowdown: float = 2.0
    transition_slowdown: float = 2.0
    compute_slowdown: float = 1.1
    unprioritized_slowdown: float = 2.0
    background_compute: float = 0.5
    background_communication: float = 0.5

    def __post_init__(self) -> None:
        for name in KINDS:
            _real(self, f"{name}_slowdown", minimum=1)
        _real(self, "unprioritized_slowdown", minimum=1)
        for name in ("background_compute", "background_communication"):
            _real(self, name, above=0)
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class Multiplexing:
    """Which of DeepPool's mechanisms are on.

    Attributes:
      max_outstanding: graphs of the background that may be launched and not ended (pacing); None:
        no bound.
      operators_per_graph: consecutive operators of the background in one launch (split graphs);
        None: its whole iteration.
      priorities: the foreground's stream has priority. Without a bound on launches of no effect.
      max_slowdown: spans that take more than so many times their time alone are run without the
        background (feedback); None: no feedback.
      launch_seconds: of the host per launch, hidden while another launch is outstanding ("several
        microseconds").

    Raises:
      ValueError: a number out of its range.
    """

    max_outstanding: int | None = 2
    operators_per_graph: int | None = 1
    priorities: bool = True
    max_slowdown: float | None = 1.5
    launch_seconds: float = 5e-6

    def __post_init__(self) -> None:
        for name in ("max_outstanding", "operators_per_graph"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        checks.boolean("priorities", self.priorities)
        if self.max_slowdown is not None:
            _real(self, "max_slowdown", minimum=1)
        _real(self, "launch_seconds", minimum=0)


@dataclass(frozen=True)
class BackgroundJob:
    """What each device does for itself besides.

    Attributes:
      operator_seconds: of one iteration on a device of its own, in order.
      batch: samples of an iteration.

    Raises:
      ValueError: no operator, a time that is not positive, a sum that is no number, or no samples.
    """

    operator_seconds: tuple[float, ...]
    batch: int

    def __post_init__(self) -> None:
        seconds = tuple(
            checks.real("operator_seconds", s, above=0)
            for s in checks.sequence("operator_seconds", self.operator_seconds)
        )
        if not seconds:
            raise ValueError("operator_seconds must hold at least one operator, got none")
        checks.real("the sum of operator_seconds", sum(seconds))
        object.__setattr__(self, "operator_seconds", seconds)
        object.__setattr__(self, "batch", checks.integer("batch", self.batch, 1))

    @property
    def iteration_seconds(self) -> float:
        """On a device of its own."""
        return sum(self.operator_seconds)


@dataclass(frozen=True)
class Multiplexed:
    """What both jobs get.

    Attributes:
      iteration_seconds: of the foreground, the mean over the simulated iterations.
      alone_seconds: of the foreground without the background.
      background_iterations: per second, all devices together.
      paused: the plan's spans beside which the background is paused, by their index.
      span_slowdowns: of each span of the plan, waiting included, the mean over iterations; 1 where
        a span takes no time.
    """

    iteration_seconds: float
    alone_seconds: float
    background_iterations: float
    paused: tuple[int, ...]
    span_slowdowns: tuple[float, ...]

    @property
    def foreground_slowdown(self) -> float:
        """How many times longer an iteration takes than alone."""
        if self.alone_seconds == 0:
            return 1.0
        return self.iteration_seconds / self.alone_seconds


def simulate_multiplexing(
    plan: BurstPlan,
    background: BackgroundJob,
    how: Multiplexing | None = None,
    interference: Interference | None = None,
    *,
    utilization: Sequence[float] | None = None,
    iterations: int = 2,
) -> Multiplexed:
    """Returns what a foreground job under a burst plan and a background job per device get.

    Args:
      plan: the foreground's.
      background: the job of every device of the cluster.
      how: the mechanisms that are on; None: all, as `Multiplexing` has them.
      interference: None: as `Interference` has it.
      utilization: the share of a device that each layer's computation occupies under the plan,
        shape [L], from 0 to 1: beside it the background does 1 minus that per second, but at least
        a hundredth. None: `Interference.background_compute` for all.
      iterations: of the foreground.

    Raises:
      ValueError: a field out of its range, a foreground that takes no time, so short operators that
        there are more than `MAX_OPERATORS` of them, or times so large that their sum is no number.
    """
    how = Multiplexing() if how is None else how
    interference = Interference() if interference is None else interference
    iterations = checks.integer("iterations", iterations, 1)
    if not plan.iteration_seconds:
        raise ValueError("iteration_seconds of the plan must be greater than 0, got 0")
    if not any(span.seconds for span in plan.spans):
        raise ValueError("spans of the plan must take time, got none that does")
    if utilization is not None:
        utilization = tuple(
            checks.real("utilization", u, minimum=0)
            for u in checks.sequence("utilization", utilization)
        )
        if len(utilization) != len(plan.layer_names) or max(utilization) > 1:
            raise ValueError(
                f"utilization must be {len(plan.layer_names)} numbers from 0 to 1, one per layer, "
                f"got {utilization!r:.80}"
            )
    job = _Job(plan, background, how, interference, utilization, iterations)
    paused: frozenset[int] = frozenset()
    while True:
        found = job.run(paused)
        if how.max_slowdown is None:
            return found
        # What has been seen to suffer once stays alone: nothing swings.
        suffering = {i for i, s in enumerate(found.span_slowdowns) if s > how.max_slowdown}
        if suffering <= paused:
            return found
        paused |= suffering


@dataclass(frozen=True)
class _Operator:
    """Of the background.

    Attributes:
      seconds: on a device of its own, with the host's time that its launch does not hide.
      work: of these, what the operator takes.
      last: of what has been launched before a launch of the foreground.
    """

    seconds: float
    work: float
    last: bool


@dataclass
class _Device:
    """The background on devices that do the same.

    Attributes:
      count: of them.
      operator: position of the one in progress, or that comes next.
      left: seconds of it left at full pace; 0: none is in progress.
      launched: whether the one that comes next has been launched.
      gap: seconds until the host has launched the next.
      held: spans beside which nothing starts, waiting or running.
      done: seconds of operators' work on one of the devices.
    """

    count: int
    operator: int = 0
    left: float = 0.0
    launched: bool = False
    gap: float = 0.0
    held: int = 0
    done: float = 0.0


class _Job:
    """One simulation, but for which spans the background is paused beside."""

    def __init__(
        self,
        plan: BurstPlan,
        background: BackgroundJob,
        how: Multiplexing,
        interference: Interference,
        utilization: Sequence[float] | None,
        iterations: int,
    ) -> None:
        self._plan = plan
        self._background = background
        self._how = how
        self._iterations = iterations
        ends = {(f, f + n) for f, n in zip(plan.first_devices, plan.num_devices, strict=True)}
        edges = sorted({0, plan.device_counts[-1]}.union(*ends))
        self._counts = [high - low for low, high in itertools.pairwise(edges)]
        self._occupied = []
        for span in plan.spans:
            first = plan.first_devices[span.layer]
            last = first + plan.num_devices[span.layer]
            self._occupied.append([k for k, low in enumerate(edges[:-1]) if first <= low < last])
        shared = how.priorities and how.max_outstanding is not None
        self._slowdowns, self._paces = [], []
        for span in plan.spans:
            slowdown = float(getattr(interference, f"{span.kind}_slowdown"))
            if not shared:
                slowdown = max(slowdown, interference.unprioritized_slowdown)
            self._slowdowns.append(slowdown)
            pace = interference.background_communication
            if span.kind == "compute":
                pace = interference.background_compute
                if utilization is not None:
                    pace = max(_LEAST_PACE, 1 - utilization[span.layer])
            self._paces.append(pace)
        self._operators, self._gap = _launches(background, how)
        self._before = [span.after for span in plan.spans]
        self._check_operators()

    def _check_operators(self) -> None:
        """Raises `ValueError` where there would be too many to go through one by one."""
        launches = sum(operator.last for operator in self._operators)
        each = sum(operator.seconds for operator in self._operators) + launches * self._gap
        # As many as there are if the foreground is slowed down all the time.
        longest = self._plan.iteration_seconds * max(self._slowdowns) * self._iterations
        times = longest * len(self._counts) / each
        if not times * len(self._operators) <= MAX_OPERATORS:
            least = longest * len(self._counts) / MAX_OPERATORS
            raise ValueError(
                f"operator_seconds must be at least {units.time(least)} in the mean, launches"
                f" included, for at most {MAX_OPERATORS} operators in {self._iterations} iterations"
                f" of {units.time(self._plan.iteration_seconds)}, got"
                f" {units.time(each / len(self._operators))}"
            )

    def run(self, paused: frozenset[int]) -> Multiplexed:
        """Simulates with the background paused beside the spans `paused`."""
        devices = [_Device(count) for count in self._counts]
        clock, slowdowns = 0.0, [0.0] * len(self._plan.spans)
        for _ in range(self._iterations):
            clock = self._iteration(clock, devices, paused, slowdowns)
        if not math.isfinite(clock):
            raise ValueError(
                "operator_seconds and the plan's seconds must add up to a finite number, got"
                f" {clock}"
            )
        whole = self._background.iteration_seconds
        done = sum(device.count * (device.done / whole) for device in devices)
        return Multiplexed(
            iteration_seconds=clock / self._iterations,
            alone_seconds=self._plan.iteration_seconds,
            background_iterations=done / clock,
            paused=tuple(sorted(paused)),
            span_slowdowns=tuple(
                taken / self._iterations / span.seconds if span.seconds else 1.0
                for taken, span in zip(slowdowns, self._plan.spans, strict=True)
            ),
        )

    def _iteration(
        self,
        clock: float,
        devices: list[_Device],
        paused: frozenset[int],
        taken: list[float],
    ) -> float:
        """Runs one iteration from `clock` on; adds what each span takes to `taken`."""
        spans = self._plan.spans
        missing = [len(before) for before in self._before]
        followers: list[list[int]] = [[] for _ in spans]
        for index, before in enumerate(self._before):
            for other in before:
                followers[other].append(index)
        waiting: dict[int, set[int]] = {}  # span -> devices on which something is ahead of it
        running: dict[int, float] = {}  # span -> seconds left at full pace
        ready_at = [0.0] * len(spans)
        arrived = [index for index, count in enumerate(missing) if not count]
        left = len(spans)
        while left:
            for index in arrived:
                ready_at[index] = clock
                occupied = self._occupied[index]
                # What takes no time is not launched.
                launched = spans[index].seconds > 0
                waiting[index] = {
                    kind
                    for kind in occupied
                    if launched and (devices[kind].left > 0 or self._queued(devices[kind], index))
                }
                if index in paused:
                    for kind in occupied:
                        devices[kind].held += 1
            arrived = []
            for index in [index for index, ahead in waiting.items() if not ahead]:
                del waiting[index]
                running[index] = spans[index].seconds
            ended = [index for index, seconds in running.items() if seconds <= 0]
            if ended:
                for index in ended:
                    del running[index]
                    left -= 1
                    taken[index] += clock - ready_at[index]
                    if index in paused:
                        for kind in self._occupied[index]:
                            devices[kind].held -= 1
                    for follower in followers[index]:
                        missing[follower] -= 1
                        if not missing[follower]:
                            arrived.append(follower)
                continue
            for device in devices:
                if not device.left and not device.gap and (device.launched or not device.held):
                    device.left = self._operators[device.operator].seconds
                    device.launched = True
            clock += self._advance(devices, waiting, running)
        return clock

    def _queued(self, device: _Device, index: int) -> bool:
        """Whether a span is the foreground's launch, and launches of the background are ahead."""
        return device.launched and not self._before[index]

    def _advance(
        self, devices: list[_Device], waiting: dict[int, set[int]], running: dict[int, float]
    ) -> float:
        """Goes on until something ends; returns the seconds that took."""
        paces = [1.0] * len(devices)
        speeds: dict[int, float] = {}
        for index in running:
            occupied = self._occupied[index]
            beside = any(devices[kind].left > 0 for kind in occupied)
            speeds[index] = 1 / self._slowdowns[index] if beside else 1.0
            for kind in occupied:
                paces[kind] = min(paces[kind], self._paces[index])
        until = [seconds / speeds[index] for index, seconds in running.items()]
        for device, pace in zip(devices, paces, strict=True):
            if device.left > 0:
                until.append(device.left / pace)
            elif device.gap > 0:
                until.append(device.gap)
        elapsed = min(until)
        for index, seconds in running.items():
            over = seconds / speeds[index] <= elapsed
            running[index] = 0.0 if over else seconds - elapsed * speeds[index]
        for kind, (device, pace) in enumerate(zip(devices, paces, strict=True)):
            if device.left > 0:
                operator = self._operators[device.operator]
                over = device.left / pace <= elapsed
                worked = device.left if over else elapsed * pace
                device.done += worked * (operator.work / operator.seconds)
                device.left = 0.0 if over else device.left - worked
                if over:
                    device.operator = (device.operator + 1) % len(self._operators)
                    device.launched = not operator.last
                    device.gap = self._gap if operator.last else 0.0
                    for index, ahead in waiting.items():
                        if not self._queued(device, index):
                            ahead.discard(kind)
            elif device.gap > 0:
                device.gap = 0.0 if device.gap <= elapsed else device.gap - elapsed
        return elapsed


def _launches(background: BackgroundJob, how: Multiplexing) -> tuple[list[_Operator], float]:
    """Returns an iteration of the background, and the host's time after what is launched together.

    What is `last` ends what the foreground's launch cannot overtake.
    """
    operators = background.operator_seconds
    count = len(operators)
    per_graph = count if how.operators_per_graph is None else how.operators_per_graph
    # With one launch at a time the host's time is added; with more it is hidden, if it can be.
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
            found.append(_Operator(seconds, operators[index], last))
    return found, 0.0 if hidden else how.launch_seconds


def _real(settings: Any, field: str, **bounds: float) -> None:
    """Keeps a setting as a finite float within bounds, else raises `ValueError`."""
    object.__setattr__(settings, field, checks.real(field, getattr(settings, field), **bounds))
