"""The result of a search: the settings tried, the searchers that proposed them, and the times."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tf_libra.autotune.search.bandit import Use
from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Positive, Value
from tf_libra.planning.comm_config import CommConfig

# Who has "proposed" what a search begins with.
START = "start"


@dataclass(frozen=True)
class SettingTrial(Value):
    """One measured step.

    Attributes:
      searcher: who proposed it.
      setting: under which.
      seconds: what it took.
      found_best: whether the setting, in the median of its steps, became the best with it.

    Raises:
      ValueError: a field is out of its range.
    """

    searcher: str
    setting: CommConfig
    seconds: Positive
    found_best: bool


@dataclass(frozen=True)
class Search:
    """The trials of a search.

    Attributes:
      trials: every measured step, in order.
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
        """The setting with the shortest step; None where nothing was measured."""
        return next(iter(self.seconds), None)

    @property
    def history(self) -> tuple[Use, ...]:
        """The uses of searchers."""
        return tuple(
            Use(trial.searcher, trial.found_best)
            for trial in self.trials
            if trial.searcher != START
        )

    def after(self, searcher: str, setting: CommConfig, seconds: float) -> "Search":
        """With one more measured step."""
        before = self.seconds
        longer = Search((*self.trials, SettingTrial(searcher, setting, seconds, False)))
        now = longer.seconds[setting]
        others = [value for other, value in before.items() if other != setting]
        was_best = before.get(setting, float("inf"))
        found_best = now < min([*others, was_best], default=float("inf"))
        return Search((*self.trials, SettingTrial(searcher, setting, seconds, found_best)))

    def describe(self) -> str:
        """In words."""
        if self.best is None:
            return "no setting was measured"
        used: dict[str, list[bool]] = {}
        for use in self.history:
            used.setdefault(use.searcher, []).append(use.found_best)
        by = ", ".join(f"{name} {len(found)} ({sum(found)})" for name, found in used.items())
        text = (
            f"of {len(self.seconds)} settings in {len(self.trials)} steps the best is"
            f" {self.best.describe()}, {formatting.time(self.seconds[self.best])}"
        )
        return f"{text}; steps by searcher (new bests): {by}" if by else text

    def to_document(self) -> list[dict[str, Any]]:
        """Its trials as JSON values; `from_document` reads them back unchanged."""
        return [trial.to_document() for trial in self.trials]

    @classmethod
    def from_document(cls, document: Any) -> "Search":
        """Reads what `to_document` wrote; `ValueError` names what is wrong with it."""
        entries = validation.sequence("search", document)
        return cls(
            tuple(SettingTrial.parse(f"search[{i}]", entry) for i, entry in enumerate(entries))
        )
