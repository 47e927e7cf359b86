"""A multi-armed bandit with a sliding window, and credit by the area under a curve.

AIACC-Training, section VI, which takes it from OpenTuner (Ansel et al., PACT 2014), as this does:
in every iteration that searcher t is used that maximizes

    AUC_t + C sqrt(2 lg|H| / H_t)

where H is the history, as far as it lies in the window, H_t how often t was used in it, and C
weighs exploration. The curve of t rises with every use that has found a new global best, and is
flat over the others; AUC_t is the area under it. OpenTuner's formula for the area, which AIACC's
authors do not print, gives what was found last the most weight:

    AUC_t = 2 / (n (n + 1)) * sum of i V_i, i = 1 to n = H_t

V_i being 1 if the i-th use has found a new best, else 0. A searcher not in the window comes first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_libra.internal import validation

EXPLORATION = 0.2
WINDOW = 50


@dataclass(frozen=True)
class Use:
    """One use of a searcher.

    Attributes:
      searcher: its name.
      found_best: whether what it proposed was better than all that was measured before.
    """

    searcher: str
    found_best: bool


def area_under_curve(found_best: Sequence[bool]) -> float:
    """AUC_t of a searcher with these uses, the oldest first; from 0 to 1, 0 without any."""
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
    """Returns the scores that the bandit maximizes, by searcher; infinite if unused in the window.

    Args:
      history: all uses, the oldest first; those of searchers that are no more count for |H|.
      searchers: names of those that may be used next.
      exploration: C, at least 0.
      window: how many uses count, at least 1.

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
    """The searcher to use next; of equals the one that stands first.

    Raises:
      ValueError: there is none, or an argument is out of its range.
    """
    if not searchers:
        raise ValueError("searchers must hold at least one, got none")
    scored = scores(history, searchers, exploration, window)
    return max(searchers, key=lambda name: scored[name])
