"""The searchers that the bandit chooses from: grid, population based, Bayesian, Hyperband.

The last three are Optuna's samplers and pruner, which `pip install tf-libra[search]` brings;
without it there is the grid. Each searcher proposes a setting, receives the time of its step, and
hears what the others have measured.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tf_libra.autotune.search.space import Space
from tf_libra.planning.comm_config import CommConfig

# Individuals of a generation. A search has some fifty measurements: several generations.
POPULATION = 6
# Steps that Hyperband spends on a setting at most, and by which factor its rungs differ.
MOST_STEPS, REDUCTION = 4, 2


class ExhaustedError(Exception):
    """A searcher has nothing more to propose."""


class Searcher(Protocol):
    """Proposes settings, one step each."""

    def ask(self) -> CommConfig:
        """Returns the setting to measure next; raises `ExhaustedError` if there is none."""
        ...

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Receives the seconds of a step under the setting that `ask` returned last."""
        ...

    def hear(self, setting: CommConfig, seconds: float) -> None:
        """Receives the seconds of a step that another searcher has proposed."""
        ...


class Grid:
    """Every setting once, coarse to fine; not what others have measured."""

    def __init__(self, space: Space) -> None:
        """Begins with the corners."""
        self._left = [space.at(place) for place in space.coarse_to_fine()]

    def ask(self) -> CommConfig:
        """The next one."""
        if not self._left:
            raise ExhaustedError
        return self._left[0]

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Removes the setting from those left."""
        self.hear(setting, seconds)

    def hear(self, setting: CommConfig, seconds: float) -> None:
        """Removes the setting from those left."""
        if setting in self._left:
            self._left.remove(setting)


class _Study:
    """A study of Optuna over the places on a space's axes."""

    def __init__(self, space: Space, **how: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._study = optuna.create_study(**how)
        self._names = ("unit", "streams", "threads")
        self._distributions: dict[str, Any] = {
            name: optuna.distributions.IntDistribution(0, len(axis) - 1)
            for name, axis in zip(self._names, space.axes, strict=True)
        }
        self._trial: Any = None

    def _asked(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental in it
            return self._study.ask(self._distributions)

    def _setting(self, trial: Any) -> CommConfig:
        return self._space.at(tuple(trial.params[name] for name in self._names))

    def ask(self) -> CommConfig:
        """A new trial's."""
        self._trial = self._asked()
        return self._setting(self._trial)

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Ends the trial."""
        self._study.tell(self._trial, seconds)

    def hear(self, setting: CommConfig, seconds: float) -> None:
        """Adds a trial of another searcher."""
        params = dict(zip(self._names, self._space.place(setting), strict=True))
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=params, distributions=self._distributions, value=seconds
            )
        )


def _population(space: Space, seed: int) -> Searcher:
    """Generations: the best settings are kept, crossed and changed."""
    import optuna

    sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
    return _OwnGenerations(space, sampler=sampler)


class _OwnGenerations(_Study):
    """Individuals of others would belong to no generation."""

    def hear(self, setting: CommConfig, seconds: float) -> None:
        """Ignores the step."""


def _bayesian(space: Space, seed: int) -> Searcher:
    """A tree-structured Parzen estimator of where short steps are."""
    import optuna

    sampler = optuna.samplers.TPESampler(n_startup_trials=3, seed=seed)
    return _Study(space, sampler=sampler)


class Hyperband(_Study):
    """Random settings, of which those that promise little are given up after few steps."""

    def __init__(self, space: Space, seed: int) -> None:
        """Begins without any."""
        import optuna

        super().__init__(
            space,
            sampler=optuna.samplers.RandomSampler(seed=seed),
            pruner=optuna.pruners.HyperbandPruner(
                min_resource=1, max_resource=MOST_STEPS, reduction_factor=REDUCTION
            ),
        )
        self._seconds: list[float] = []

    def ask(self) -> CommConfig:
        """Returns the setting of the running trial, or of a new one."""
        if self._trial is None:
            self._trial, self._seconds = self._asked(), []
        return self._setting(self._trial)

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Goes on with the trial, gives it up, or ends it."""
        self._seconds.append(seconds)
        mean = sum(self._seconds) / len(self._seconds)
        self._trial.report(mean, len(self._seconds))
        if self._trial.should_prune():
            self._study.tell(self._trial, state=self._optuna.trial.TrialState.PRUNED)
        elif len(self._seconds) >= MOST_STEPS:
            self._study.tell(self._trial, mean)
        else:
            return
        self._trial = None

    def hear(self, setting: CommConfig, seconds: float) -> None:
        """Ignores the step: rungs compare only this searcher's own trials."""


Factory = Callable[[Space, int], Searcher]
# In the paper's order.
FACTORIES: Mapping[str, Factory] = {
    "grid": lambda space, seed: Grid(space),
    "population": _population,
    "bayesian": _bayesian,
    "hyperband": Hyperband,
}
