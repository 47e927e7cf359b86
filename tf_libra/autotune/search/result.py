"""Result of a search: measured settings, the searchers that proposed them, and the step times."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tf_libra.autotune.search.bandit import Use
from tf_libra.internal import formatting
from tf_libra.internal.values import Positive, Value, parse_items, plain
from tf_libra.planning.data_parallel.aiacc import CommConfig

# Searcher name of the initial settings.
START = "start"


@dataclass(frozen=True)
class SettingTrial(Value):
    """Measured step of a search.

    Attributes:
      searcher: name of the proposing searcher, or `START`.
      setting: setting of the step.
      seconds: seconds of the step.
      found_best: True if the step made its setting the best one, by the median of its steps.

    Raises:
      ValueError: a field is out of its range.
    """

    searcher: str
    setting: CommConfig
    seconds: Positive
    found_best: bool


@dataclass(frozen=True)
class Search(Value):
    """Trials of a search.

    Attributes:
      trials: measured steps in chronological order.
    """

    trials: tuple[SettingTrial, ...] = ()

    @cached_property
    def seconds(self) -> dict[CommConfig, float]:
        """Median seconds of each setting's steps, the best first."""
        steps: dict[CommConfig, list[float]] = {}
        for trial in self.trials:
            steps.setdefault(trial.setting, []).append(trial.seconds)
        medians = {setting: float(np.median(each)) for setting, each in steps.items()}
        return dict(sorted(medians.items(), key=lambda item: item[1]))

    @property
    def best(self) -> CommConfig | None:
        """Setting with the shortest median step; None without measurements."""
        return next(iter(self.seconds), None)

    @property
    def history(self) -> tuple[Use, ...]:
        """Uses of searchers."""
        return tuple(
            Use(trial.searcher, trial.found_best)
            for trial in self.trials
            if trial.searcher != START
        )

    def with_trial(self, searcher: str, setting: CommConfig, seconds: float) -> "Search":
        """Returns the search with one more measured step."""
        before = self.seconds
        longer = Search((*self.trials, SettingTrial(searcher, setting, seconds, False)))
        now = longer.seconds[setting]
        others = [value for other, value in before.items() if other != setting]
        was_best = before.get(setting, float("inf"))
        found_best = now < min([*others, was_best], default=float("inf"))
        return Search((*self.trials, SettingTrial(searcher, setting, seconds, found_best)))

    def describe(self) -> str:
        """Returns the best setting and the uses of searchers as a phrase."""
        if self.best is None:
            return "no setting was measured"
        used: dict[str, list[bool]] = {}
        for use in self.history:
            used.setdefault(use.searcher, []).append(use.found_best)
        by = ", ".join(f"{name} {len(found)} ({sum(found)})" for name, found in used.items())
        text = (
            f"best of {len(self.seconds)} settings in {len(self.trials)} steps:"
            f" {self.best.describe()}, {formatting.time(self.seconds[self.best])}"
        )
        return f"{text}; steps by searcher (new bests): {by}" if by else text

    def to_document(self) -> Any:
        """Returns the list of trials as JSON values, which `parse` reads back unchanged."""
        return plain(self.trials)

    @classmethod
    def parse(cls, name: str, value: Any) -> "Search":
        """Reads the result of `to_document`; a `ValueError` names the field that is wrong."""
        return cls(parse_items(name, value, SettingTrial))
