"""Simulation of a foreground job under a burst plan with background jobs (DeepPool, section 5).

The foreground's spans run as planned. On each device a background job launches its operators in
graphs, repeatedly. The jobs interfere as follows:

- While both run on a device, each is slower by the factors of `Interference`; a span of several
  devices is as slow as on the slowest.
- Devices do not preempt: a span that is ready waits for the background's operator in progress.
- The foreground's iteration is one launch, a CUDA graph. It waits for earlier launches of the
  background: with stream priorities for the graph in progress, without them for all outstanding
  graphs. If launches are not bounded, it waits for a whole background iteration, since queues
  without priorities are then full of background graphs.
- The background is paused during spans that it would slow down too much: it launches nothing until
  such a span has ended.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra.internal import formatting, validation
from tf_libra.model_parallel.simulation.multiplexing_parameters import (
    BackgroundJob,
    Interference,
    Multiplexing,
    background_operators,
)
from tf_libra.specs.burst import BurstPlan

# Least seconds of background work per second while the background is not paused.
_LEAST_SPEED = 0.01
# Most background operators that are simulated, over all groups of equal devices.
MAX_OPERATORS = 1_000_000


@dataclass(frozen=True)
class Multiplexed:
    """Throughput of both jobs.

    Attributes:
      iteration_seconds: mean seconds of a foreground iteration.
      alone_seconds: seconds of a foreground iteration without the background.
      background_iterations: background iterations per second on all devices.
      paused: indices of the plan's spans that pause the background.
      span_slowdowns: mean slowdown of each span of the plan, waiting included; 1 for a span without
        duration.
    """

    iteration_seconds: float
    alone_seconds: float
    background_iterations: float
    paused: tuple[int, ...]
    span_slowdowns: tuple[float, ...]

    @property
    def foreground_slowdown(self) -> float:
        """Ratio of a foreground iteration to one without the background."""
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
    """Returns the throughput of a foreground job under a burst plan and of its background jobs.

    Args:
      plan: burst plan of the foreground.
      background: background job of every device of the cluster.
      how: enabled mechanisms; None: the defaults of `Multiplexing`.
      interference: slowdowns; None: the defaults of `Interference`.
      utilization: share of a device that each layer's computation occupies under the plan, shape
        [L], from 0 to 1. The background does 1 minus that per second, at least 0.01. None:
        `Interference.background_compute` for all layers.
      iterations: number of simulated foreground iterations.

    Raises:
      ValueError: a field is out of its range, the foreground takes no time, the simulation has more
        than `MAX_OPERATORS` operators, or the sum of times is not finite.
    """
    how = Multiplexing() if how is None else how
    interference = Interference() if interference is None else interference
    iterations = validation.integer("iterations", iterations, 1)
    if not plan.iteration_seconds:
        raise ValueError("iteration_seconds of the plan must be greater than 0, got 0")
    if not any(span.seconds for span in plan.spans):
        raise ValueError("spans of the plan must take time, got none that does")
    if utilization is not None:
        utilization = tuple(
            validation.real("utilization", u, minimum=0)
            for u in validation.sequence("utilization", utilization)
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
        # A span that was slowed down once stays exclusive, so the result does not oscillate.
        suffering = {i for i, s in enumerate(found.span_slowdowns) if s > how.max_slowdown}
        if suffering <= paused:
            return found
        paused |= suffering


@dataclass
class _Device:
    """State of the background on a group of equal devices.

    Attributes:
      count: number of devices.
      operator: index of the operator in progress, or else of the next one.
      left: seconds left of the operator in progress at full speed; 0 if none is in progress.
      launched: True if the next operator has been launched.
      gap: seconds until the host has launched the next operator.
      num_pausing: number of ready or running spans that pause the background.
      done: seconds of work done on one of the devices.
    """

    count: int
    operator: int = 0
    left: float = 0.0
    launched: bool = False
    gap: float = 0.0
    num_pausing: int = 0
    done: float = 0.0


class _Job:
    """Inputs of the simulation, apart from the spans that pause the background."""

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
        self._slowdowns, self._background_speeds = [], []
        for span in plan.spans:
            slowdown = float(getattr(interference, f"{span.kind}_slowdown"))
            if not shared:
                slowdown = max(slowdown, interference.unprioritized_slowdown)
            self._slowdowns.append(slowdown)
            background_speed = interference.background_communication
            if span.kind == "compute":
                background_speed = interference.background_compute
                if utilization is not None:
                    background_speed = max(_LEAST_SPEED, 1 - utilization[span.layer])
            self._background_speeds.append(background_speed)
        self._operators, self._gap = background_operators(background, how)
        self._before = [span.after for span in plan.spans]
        self._check_operators()

    def _check_operators(self) -> None:
        """Raises `ValueError` if the simulation would have too many operators."""
        launches = sum(operator.last for operator in self._operators)
        each = sum(operator.seconds for operator in self._operators) + launches * self._gap
        # An upper bound: the foreground is slowed down all the time.
        longest = self._plan.iteration_seconds * max(self._slowdowns) * self._iterations
        times = longest * len(self._counts) / each
        if not times * len(self._operators) <= MAX_OPERATORS:
            least = longest * len(self._counts) / MAX_OPERATORS
            raise ValueError(
                f"operator_seconds must be at least {formatting.time(least)} in the mean, launches"
                f" included, for at most {MAX_OPERATORS} operators in {self._iterations} iterations"
                f" of {formatting.time(self._plan.iteration_seconds)}, got"
                f" {formatting.time(each / len(self._operators))}"
            )

    def run(self, paused: frozenset[int]) -> Multiplexed:
        """Simulates with the background paused during the spans `paused`."""
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
        """Runs one iteration from `clock` on and adds the seconds of each span to `taken`."""
        spans = self._plan.spans
        missing = [len(before) for before in self._before]
        followers: list[list[int]] = [[] for _ in spans]
        for index, before in enumerate(self._before):
            for other in before:
                followers[other].append(index)
        waiting: dict[int, set[int]] = {}  # span -> devices with an operator ahead of it
        running: dict[int, float] = {}  # span -> seconds left at full speed
        ready_at = [0.0] * len(spans)
        arrived = [index for index, count in enumerate(missing) if not count]
        left = len(spans)
        while left:
            for index in arrived:
                ready_at[index] = clock
                occupied = self._occupied[index]
                # A span without duration is not launched.
                launched = spans[index].seconds > 0
                waiting[index] = {
                    kind
                    for kind in occupied
                    if launched and (devices[kind].left > 0 or self._queued(devices[kind], index))
                }
                if index in paused:
                    for kind in occupied:
                        devices[kind].num_pausing += 1
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
                            devices[kind].num_pausing -= 1
                    for follower in followers[index]:
                        missing[follower] -= 1
                        if not missing[follower]:
                            arrived.append(follower)
                continue
            for device in devices:
                if (
                    not device.left
                    and not device.gap
                    and (device.launched or not device.num_pausing)
                ):
                    device.left = self._operators[device.operator].seconds
                    device.launched = True
            clock += self._advance(devices, waiting, running)
        return clock

    def _queued(self, device: _Device, index: int) -> bool:
        """Returns True if the span is the foreground's launch, queued behind the background's."""
        return device.launched and not self._before[index]

    def _advance(
        self, devices: list[_Device], waiting: dict[int, set[int]], running: dict[int, float]
    ) -> float:
        """Advances to the next end; returns the elapsed seconds."""
        background_speeds = [1.0] * len(devices)
        speeds: dict[int, float] = {}
        for index in running:
            occupied = self._occupied[index]
            shared = any(devices[kind].left > 0 for kind in occupied)
            speeds[index] = 1 / self._slowdowns[index] if shared else 1.0
            for kind in occupied:
                background_speeds[kind] = min(
                    background_speeds[kind], self._background_speeds[index]
                )
        until = [seconds / speeds[index] for index, seconds in running.items()]
        for device, background_speed in zip(devices, background_speeds, strict=True):
            if device.left > 0:
                until.append(device.left / background_speed)
            elif device.gap > 0:
                until.append(device.gap)
        elapsed = min(until)
        for index, seconds in running.items():
            over = seconds / speeds[index] <= elapsed
            running[index] = 0.0 if over else seconds - elapsed * speeds[index]
        for kind, (device, background_speed) in enumerate(
            zip(devices, background_speeds, strict=True)
        ):
            if device.left > 0:
                operator = self._operators[device.operator]
                over = device.left / background_speed <= elapsed
                worked = device.left if over else elapsed * background_speed
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
