"""Searchers that the bandit chooses from: grid, NSGA-II, Bayesian, Hyperband.

AIACC-Training has population based training in place of NSGA-II. It trains several
models concurrently and copies weights from the better ones to the others. A job that tunes itself
has one model, so what remains of it is the evolution of settings.

The last three are samplers and a pruner of Optuna (`pip install tf-libra[search]`); without it only
the grid is available. Each searcher proposes a setting, receives the time of its step and observes
the steps of the others.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from tf_libra.autotune.search.space import Space
from tf_libra.internal.registry import Registry
from tf_libra.planning.data_parallel.aiacc import CommConfig

# Individuals per generation. A search of about fifty steps has several generations.
POPULATION = 6
# Maximum steps of a setting in Hyperband, and the reduction factor of its rungs.
MAX_STEPS, REDUCTION = 4, 2


class ExhaustedError(Exception):
    """A searcher has no more proposals."""


class Searcher(Protocol):
    """Source of proposals, one step each."""

    def ask(self) -> CommConfig:
        """Returns the setting to measure next; raises `ExhaustedError` if there is none."""
        ...

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Receives the seconds of a step under the setting of the last `ask`."""
        ...

    def observe(self, setting: CommConfig, seconds: float) -> None:
        """Receives the seconds of a step that another searcher proposed."""
        ...


class Grid:
    """Searcher that proposes every setting not yet measured once, coarse to fine."""

    def __init__(self, space: Space) -> None:
        """Starts with the corners."""
        self._left = [space.setting_at(indices) for indices in space.coarse_to_fine()]

    def ask(self) -> CommConfig:
        """Returns the first remaining setting."""
        if not self._left:
            raise ExhaustedError
        return self._left[0]

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Removes the setting from the remaining ones."""
        self.observe(setting, seconds)

    def observe(self, setting: CommConfig, seconds: float) -> None:
        """Removes the setting from the remaining ones."""
        if setting in self._left:
            self._left.remove(setting)


class _Study:
    """Optuna study over the indices of a space's axes."""

    def __init__(self, space: Space, **options: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._study = optuna.create_study(**options)
        self._names = ("unit", "streams", "threads")
        self._distributions: dict[str, Any] = {
            name: optuna.distributions.IntDistribution(0, len(axis) - 1)
            for name, axis in zip(self._names, space.axes, strict=True)
        }
        self._trial: Any = None

    def _new_trial(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ExperimentalWarning
            return self._study.ask(self._distributions)

    def _setting(self, trial: Any) -> CommConfig:
        return self._space.setting_at(tuple(trial.params[name] for name in self._names))

    def ask(self) -> CommConfig:
        """Returns the setting of a new trial."""
        self._trial = self._new_trial()
        return self._setting(self._trial)

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Ends the trial."""
        self._study.tell(self._trial, seconds)

    def observe(self, setting: CommConfig, seconds: float) -> None:
        """Adds another searcher's step as a trial."""
        params = dict(zip(self._names, self._space.indices_of(setting), strict=True))
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=params, distributions=self._distributions, value=seconds
            )
        )


def _nsga2(space: Space, seed: int) -> Searcher:
    """Returns NSGA-II on one objective, which keeps, crosses and mutates the best settings."""
    import optuna

    sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
    return _OwnGenerations(space, sampler=sampler)


class _OwnGenerations(_Study):
    """Study without other searchers' trials, which would belong to no generation."""

    def observe(self, setting: CommConfig, seconds: float) -> None:
        """Ignores the step."""


def _bayesian(space: Space, seed: int) -> Searcher:
    """Returns a tree-structured Parzen estimator."""
    import optuna

    sampler = optuna.samplers.TPESampler(n_startup_trials=3, seed=seed)
    return _Study(space, sampler=sampler)


class Hyperband(_Study):
    """Random search that stops unpromising settings after few steps."""

    def __init__(self, space: Space, seed: int) -> None:
        """Starts without a trial."""
        import optuna

        super().__init__(
            space,
            sampler=optuna.samplers.RandomSampler(seed=seed),
            pruner=optuna.pruners.HyperbandPruner(
                min_resource=1, max_resource=MAX_STEPS, reduction_factor=REDUCTION
            ),
        )
        self._seconds: list[float] = []

    def ask(self) -> CommConfig:
        """Returns the setting of the running trial, or of a new one."""
        if self._trial is None:
            self._trial, self._seconds = self._new_trial(), []
        return self._setting(self._trial)

    def tell(self, setting: CommConfig, seconds: float) -> None:
        """Continues, prunes or ends the trial."""
        self._seconds.append(seconds)
        mean = sum(self._seconds) / len(self._seconds)
        self._trial.report(mean, len(self._seconds))
        if self._trial.should_prune():
            self._study.tell(self._trial, state=self._optuna.trial.TrialState.PRUNED)
        elif len(self._seconds) >= MAX_STEPS:
            self._study.tell(self._trial, mean)
        else:
            return
        self._trial = None

    def observe(self, setting: CommConfig, seconds: float) -> None:
        """Ignores the step: rungs compare only this searcher's own trials."""


Factory = Callable[[Space, int], Searcher]
SEARCHERS: Registry[Factory] = Registry("searcher")
# In the paper's order, which decides between equal scores.
SEARCHERS.add("grid", lambda space, seed: Grid(space))
SEARCHERS.add("nsga2", _nsga2)
SEARCHERS.add("bayesian", _bayesian)
SEARCHERS.add("hyperband", Hyperband)
