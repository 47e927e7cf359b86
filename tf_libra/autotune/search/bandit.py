"""Multi-armed bandit with a sliding window and area-under-the-curve credit (AIACC, section VI).

AIACC-Training takes it from OpenTuner (Ansel et al., PACT 2014). Every iteration uses the searcher
t that maximizes

    AUC_t + C sqrt(2 lg|H| / H_t)

where H is the history within the window, H_t the number of uses of t in it, and C weighs
exploration. The curve of t rises with every use that found a new global best and is flat over the
others; AUC_t is the area under it. AIACC's authors print neither the area nor the length of the
window. The window here has 50 uses, half of the paper's 100 iterations. OpenTuner's formula for the
area gives recent finds the most weight:

    AUC_t = 2 / (n (n + 1)) * sum of i V_i, i = 1 to n = H_t

where V_i is 1 if the i-th use found a new best, else 0. An unused searcher has priority.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_libra.internal import validation

EXPLORATION = 0.2
WINDOW = 50


@dataclass(frozen=True)
class Use:
    """Use of a searcher.

    Attributes:
      searcher: its name.
      found_best: True if its proposal was faster than all settings measured before.
    """

    searcher: str
    found_best: bool


def area_under_curve(found_best: Sequence[bool]) -> float:
    """Returns AUC_t of a searcher's uses, the oldest first: from 0 to 1, 0 without uses."""
    count = len(found_best)
    if count == 0:
        return 0.0
    area = sum(i for i, found in enumerate(found_best, start=1) if found)
    return 2.0 * area / (count * (count + 1))


def scores(
    history: Sequence[Use],
    searchers: Sequence[str],
    exploration: float = EXPLORATION,
    window: int = WINDOW,
) -> Mapping[str, float]:
    """Returns the score that the bandit maximizes, by searcher; infinite if unused in the window.

    Args:
      history: all uses, the oldest first; uses of removed searchers count for |H|.
      searchers: names of the available searchers.
      exploration: C, at least 0.
      window: number of latest uses that count, at least 1.

    Raises:
      ValueError: an argument is out of its range.
    """
    validation.real("exploration", exploration, minimum=0)
    recent = history[-validation.integer("window", window, minimum=1) :]
    found = {}
    for name in searchers:
        uses = [use.found_best for use in recent if use.searcher == name]
        if not uses:
            found[name] = math.inf
            continue
        explored = math.sqrt(2.0 * math.log2(len(recent)) / len(uses))
        found[name] = area_under_curve(uses) + exploration * explored
    return found


def choose(
    history: Sequence[Use],
    searchers: Sequence[str],
    exploration: float = EXPLORATION,
    window: int = WINDOW,
) -> str:
    """Returns the searcher to use next; the first one of equal scores.

    Raises:
      ValueError: no searchers, or an argument is out of its range.
    """
    if not searchers:
        raise ValueError("searchers must hold at least one name, got none")
    scored = scores(history, searchers, exploration, window)
    return max(searchers, key=lambda name: scored[name])
