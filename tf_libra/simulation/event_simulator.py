"""Event simulator: tasks on resources, in continuous time.

The simulators of pipelines, bursts and streams translate a plan into tasks. The sequential
simulator of data parallelism is a fast path without tasks.
"""

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Rates = Callable[[Collection[int]], Mapping[int, float]]
"""Maps the indices of running tasks to the work that each does per second."""


@dataclass(frozen=True)
class Task:
    """Unit of work of a simulation.

    A task is ready when all tasks of `after` have ended and all of `after_start` have begun. It
    begins when it is ready and holds all its resources. A resource serves one task at a time; of
    the tasks that wait for it, the least (priority, time of readiness, index) goes first. A
    resource is never reserved for a task that is not ready: a required order is written as `after`.

    Attributes:
      kind: label such as "forward"; has no effect.
      work: seconds without other tasks, at least 0; any unit of work if the caller passes rates.
      resources: resources that the task holds while it runs.
      after: indices of tasks that end before this one begins.
      after_start: indices of tasks that begin before this one, or at the same time.
      priority: smaller goes first.

    Raises:
      ValueError: work is negative or not finite.
    """

    kind: str
    work: float
    resources: tuple[Hashable, ...] = ()
    after: tuple[int, ...] = ()
    after_start: tuple[int, ...] = ()
    priority: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.work < math.inf:
            raise ValueError(
                f"work of a task of kind {self.kind!r} must be finite and at least 0, "
                f"got {self.work!r}"
            )


@dataclass(frozen=True)
class TaskSpan:
    """Simulated times of a task; seconds since the start.

    Attributes:
      ready_seconds: time at which only resources are missing.
      start_seconds: begin.
      stop_seconds: end.
    """

    ready_seconds: float
    start_seconds: float
    stop_seconds: float


def simulate_tasks(tasks: Sequence[Task], rates: Rates | None = None) -> tuple[TaskSpan, ...]:
    """Returns the simulated times of each task, in the order of `tasks`.

    Args:
      tasks: the tasks, which name each other by index.
      rates: rates of concurrent tasks that slow each other down. The simulator calls it whenever
        the set of running tasks changes; rates are constant between two calls. Tasks without work
        end when they begin and are never passed. None: every task does one second of work per
        second.

    Raises:
      ValueError: a task waits for an index out of range or, directly or not, for itself; or a rate
        is not positive and finite.
    """
    _check_indices(tasks)
    if rates is None:
        return _Run(tasks).at_constant_rate()
    return _Run(tasks).under(rates)


class _Run:
    """State of one simulation: waiting tasks and held resources."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        count = len(tasks)
        self._tasks = tasks
        self._missing = [len(task.after) + len(task.after_start) for task in tasks]
        self._followers: list[list[int]] = [[] for _ in range(count)]
        self._start_followers: list[list[int]] = [[] for _ in range(count)]
        for index, task in enumerate(tasks):
            for other in task.after:
                self._followers[other].append(index)
            for other in task.after_start:
                self._start_followers[other].append(index)
        self._in_use: set[Hashable] = set()
        # Tasks that are ready and lack a resource, in the queue of one that they lack.
        self._waiting: dict[Hashable, list[tuple[float, float, int]]] = {}
        self._ready = [math.nan] * count
        self._starts = [math.nan] * count
        self._stops = [math.nan] * count
        self.started: list[int] = []  # since the caller cleared it
        self._candidates: list[tuple[float, float, int]] = []

    def at_constant_rate(self) -> tuple[TaskSpan, ...]:
        """Simulate with constant rates of 1; a heap holds the next ends."""
        ends: list[tuple[float, int]] = []
        clock = 0.0
        self._arrive([i for i, missing in enumerate(self._missing) if missing == 0], clock)
        while True:
            self._begin(clock)
            for index in self.started:
                heapq.heappush(ends, (clock + self._tasks[index].work, index))
            self.started.clear()
            if not ends:
                return self._spans()
            clock = ends[0][0]
            while ends and ends[0][0] <= clock:
                self._end(heapq.heappop(ends)[1], clock)

    def under(self, rates: Rates) -> tuple[TaskSpan, ...]:
        """Simulate with rates that change with the set of running tasks."""
        left: dict[int, float] = {}
        clock = 0.0
        self._arrive([i for i, missing in enumerate(self._missing) if missing == 0], clock)
        while True:
            self._begin(clock)
            if self.started:
                idle = [i for i in self.started if self._tasks[i].work == 0]
                left.update((i, self._tasks[i].work) for i in self.started if i not in idle)
                self.started.clear()
                for index in idle:
                    self._end(index, clock)
                if idle:
                    continue
            if not left:
                return self._spans()
            current = rates(left.keys())
            until = {
                index: work / _positive_rate(self._tasks, index, current)
                for index, work in left.items()
            }
            elapsed = min(until.values())
            clock += elapsed
            for index, seconds in until.items():
                if seconds <= elapsed:
                    del left[index]
                    self._end(index, clock)
                else:
                    left[index] = max(0.0, left[index] - elapsed * current[index])

    def _arrive(self, indices: Sequence[int], clock: float) -> None:
        for index in indices:
            self._ready[index] = clock
            heapq.heappush(self._candidates, (self._tasks[index].priority, clock, index))

    def _begin(self, clock: float) -> None:
        """Start all tasks that can start now, in order."""
        while self._candidates:
            entry = heapq.heappop(self._candidates)
            index = entry[2]
            task = self._tasks[index]
            lacking = next((r for r in task.resources if r in self._in_use), None)
            if lacking is not None:
                heapq.heappush(self._waiting.setdefault(lacking, []), entry)
                # Its free resources may serve the next waiting task.
                self._offer(r for r in task.resources if r not in self._in_use)
                continue
            self._in_use.update(task.resources)
            self._starts[index] = clock
            self.started.append(index)
            self._release(self._start_followers[index], clock)

    def _end(self, index: int, clock: float) -> None:
        self._stops[index] = clock
        self._release(self._followers[index], clock)
        self._in_use.difference_update(self._tasks[index].resources)
        self._offer(self._tasks[index].resources)

    def _offer(self, resources: Iterable[Hashable]) -> None:
        """Retry the first task that waits for each resource."""
        for resource in resources:
            if queue := self._waiting.get(resource):
                heapq.heappush(self._candidates, heapq.heappop(queue))

    def _release(self, followers: Sequence[int], clock: float) -> None:
        for index in followers:
            self._missing[index] -= 1
            if self._missing[index] == 0:
                self._arrive([index], clock)

    def _spans(self) -> tuple[TaskSpan, ...]:
        stuck = [index for index, stop in enumerate(self._stops) if math.isnan(stop)]
        if stuck:
            shown = ", ".join(f"{i} ({self._tasks[i].kind})" for i in stuck[:5])
            raise ValueError(
                f"tasks must not wait for each other in a circle: {len(stuck)} of "
                f"{len(self._tasks)} never begin, among them {shown}"
            )
        return tuple(map(TaskSpan, self._ready, self._starts, self._stops))


def _positive_rate(tasks: Sequence[Task], index: int, current: Mapping[int, float]) -> float:
    rate = current[index]
    if not 0 < rate < math.inf:
        raise ValueError(
            f"the rate of task {index} ({tasks[index].kind}) must be positive and finite, "
            f"got {rate!r}"
        )
    return rate


def _check_indices(tasks: Sequence[Task]) -> None:
    count = len(tasks)
    for index, task in enumerate(tasks):
        for other in (*task.after, *task.after_start):
            if not 0 <= other < count:
                raise ValueError(
                    f"tasks[{index}] must wait for tasks from 0 to {count - 1}, got {other!r}"
                )
