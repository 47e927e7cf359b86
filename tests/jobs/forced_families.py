"""Trials of `auto` that a given family wins: which one is fast depends on the machine."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from tf_libra import config
from tf_libra.autotune import Budget
from tf_libra.runtime import (
    family_candidates,
    family_forecast,
    family_prediction,
    family_trials,
    trial_sequence,
)
from tf_libra.runtime.family_forecast import FamilyForecast
from tf_libra.runtime.family_trials import FIRST

# Of all trials: how long they take depends on the machine.
_LIMITS = Budget(150, float("inf"))


def _limits_of_tuning(options: config.DataParallelOptions) -> Budget:
    """Returns the limits of data parallelism, which the script's `max_tuning_steps` sets."""
    return Budget(max((options.max_tuning_steps or _LIMITS.max_steps) // 2, 1), float("inf"))


@contextlib.contextmanager
def every_family_in_trials(chosen: str, far_faster: float = float("inf")) -> Iterator[None]:
    """Lets all families join trials, and `chosen` win.

    No trial contradicts its prediction, as they do on a busy machine, after which links are
    measured again.
    """
    endless = float("inf")
    limits = {"PREDICTION_ERROR": endless, "STAGES_ERROR": endless, "MEASURED_SECONDS": 1e9}
    with (
        mock.patch.object(family_candidates, "FAR_FASTER", far_faster),
        mock.patch.object(FamilyForecast, "describe_slow", lambda *_: ""),
        mock.patch.object(family_forecast, "contradicts_links", lambda *_: False),
        mock.patch.multiple(family_prediction, **limits),
        mock.patch.object(family_trials, "CLOSE", 0.5),  # without final turns
        mock.patch.object(config.DataParallelOptions, "trial_budget", _LIMITS),
        mock.patch.object(config.DataParallelOptions, "budget", property(_limits_of_tuning)),
        mock.patch.object(
            trial_sequence,
            "choose_fastest",
            lambda seconds: chosen if chosen in seconds else FIRST,
        ),
    ):
        yield
