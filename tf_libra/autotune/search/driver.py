"""Searches a setting in steps that train, each of them one iteration of the bandit."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.engine_constraints import of_whole_tensors
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.search import bandit
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.search.samplers import FACTORIES, ExhaustedError, Factory, Searcher
from tf_libra.autotune.search.space import Searched, Space
from tf_libra.autotune.trial import Trial, TrialResult
from tf_libra.planning.comm_config import CommConfig
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def plan_of(
    profile: BackwardProfile,
    strategy: Searched,
    setting: CommConfig,
    num_workers: int,
    cuts: bool = True,
) -> Plan:
    """The plan that a setting makes of a profile; of whole tensors unless the engine cuts them."""
    packed = strategy.pack(profile, setting)
    groups = packed.groups if cuts else tuple(of_whole_tensors(packed.groups))
    return Plan.for_profile(profile, groups, num_workers, strategy.name, notes=packed.notes)


@dataclass
class _Plans:
    """The plans of settings, and which of them have been instantiated."""

    profile: BackwardProfile
    strategy: Searched
    num_workers: int
    cuts: bool
    known: set[str] = field(default_factory=set)
    of_setting: dict[CommConfig, Plan] = field(default_factory=dict)

    def get(self, setting: CommConfig) -> Plan:
        if setting not in self.of_setting:
            plan = plan_of(self.profile, self.strategy, setting, self.num_workers, self.cuts)
            self.of_setting[setting] = replace(plan, notes=())
        return self.of_setting[setting]

    def is_new(self, plan: Plan) -> bool:
        is_new = plan.fingerprint not in self.known
        self.known.add(plan.fingerprint)
        return is_new


def search(
    profile: BackwardProfile,
    strategy: Searched,
    num_workers: int,
    end: BudgetTracker,
    max_steps: int,
    notes: list[str],
    runs_streams: bool = True,
    start: Sequence[CommConfig] = (),
    factories: Mapping[str, Factory] = FACTORIES,
) -> Generator[Trial, TrialResult | None, Search]:
    """Yields steps under settings until its steps are spent or no searcher proposes any more.

    The caller sends what was observed of each step. The search begins with settings known to be
    good elsewhere and with one unit of everything, which is the safe plan. The first step of a plan
    pays for its instantiation and is not counted as a measurement.

    Args:
      profile: the gradients in the order in which they are packed.
      strategy: what may be tried.
      num_workers: N.
      end: queried before every step.
      max_steps: that it may take, including the first steps of plans.
      notes: what a reader should know is added here, such as a searcher that failed.
      runs_streams: whether the engine runs all-reduces of several streams concurrently, and those
        of parts of tensors.
      start: what to begin with, the most promising first.
      factories: the searchers, by name.
    """
    space = Space.of(strategy, profile, runs_streams)
    searchers = _made(space, strategy.seed, factories, notes)
    plans = _Plans(profile, strategy, num_workers, cuts=runs_streams)
    found = Search()
    steps_left = max_steps

    simple = CommConfig(space.unit_bytes[-1], space.num_streams[0], space.num_threads[0])
    pending = list(dict.fromkeys([*map(space.nearest, start), simple]))
    while steps_left > 0:
        name = START
        if pending:
            setting = pending.pop(0)
        else:
            proposed = _proposed(searchers, found, strategy.exploration, notes)
            if proposed is None:
                break
            name, setting = proposed
        plan = plans.get(setting)
        seconds = None
        for is_first in (True, False) if plans.is_new(plan) else (False,):
            if steps_left <= 0 or end.is_exhausted(is_first):
                return found
            steps_left -= 1
            observation = yield Trial(Phase.SEARCH, plan, traced=False, is_first=is_first)
            seconds = None if observation is None else observation.seconds
        if seconds is None or seconds <= 0:  # the step was not observed
            continue
        found = found.after(name, setting, seconds)
        _tell(searchers, name, setting, seconds, notes)
    return found


def _made(
    space: Space, seed: int, factories: Mapping[str, Factory], notes: list[str]
) -> dict[str, Searcher]:
    searchers: dict[str, Searcher] = {}
    missing = []
    for name, make in factories.items():
        try:
            searchers[name] = make(space, seed)
        except ImportError:
            missing.append(name)
        except Exception as error:  # a library's: no reason to end the training
            notes.append(f"searcher {name} cannot begin: {error!r}")
    if missing:
        notes.append(
            f"searchers {', '.join(missing)} need Optuna, which is not installed"
            " (pip install tf-libra[search])"
        )
    return searchers


def _proposed(
    searchers: dict[str, Searcher], found: Search, exploration: float, notes: list[str]
) -> tuple[str, CommConfig] | None:
    """Returns the next searcher and its proposal; drops searchers that are exhausted or fail."""
    while searchers:
        name = bandit.choose(found.history, list(searchers), exploration)
        try:
            return name, searchers[name].ask()
        except ExhaustedError:
            pass
        except Exception as error:
            notes.append(f"searcher {name} failed: {error!r}")
        del searchers[name]
    notes.append("no searcher has anything more to propose")
    return None


def _tell(
    searchers: dict[str, Searcher],
    proposer: str,
    setting: CommConfig,
    seconds: float,
    notes: list[str],
) -> None:
    for name, searcher in list(searchers.items()):
        try:
            (searcher.tell if name == proposer else searcher.hear)(setting, seconds)
        except Exception as error:
            notes.append(f"searcher {name} failed: {error!r}")
            del searchers[name]
