"""Search driver: runs a search in training steps, one iteration of the bandit each."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.concurrent_all_reduces import to_whole_tensors
from tf_libra.autotune.search import bandit
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.search.samplers import SEARCHERS, ExhaustedError, Factory, Searcher
from tf_libra.autotune.search.space import SearchableStrategy, Space
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def plan_for_setting(
    profile: BackwardProfile,
    strategy: SearchableStrategy,
    setting: CommConfig,
    num_workers: int,
    splits_tensors: bool = True,
) -> Plan:
    """Returns the plan of a setting; of whole tensors unless the engine splits them."""
    packed = strategy.pack(profile, setting)
    groups = packed.groups if splits_tensors else tuple(to_whole_tensors(packed.groups))
    return Plan.for_profile(profile, groups, num_workers, strategy.name, notes=packed.notes)


@dataclass
class _Plans:
    """Cached plans of settings, and the fingerprints of instantiated plans."""

    profile: BackwardProfile
    strategy: SearchableStrategy
    num_workers: int
    splits_tensors: bool
    known: set[str] = field(default_factory=set)
    by_setting: dict[CommConfig, Plan] = field(default_factory=dict)

    def get(self, setting: CommConfig) -> Plan:
        if setting not in self.by_setting:
            plan = plan_for_setting(
                self.profile, self.strategy, setting, self.num_workers, self.splits_tensors
            )
            self.by_setting[setting] = replace(plan, notes=())
        return self.by_setting[setting]

    def is_new(self, plan: Plan) -> bool:
        is_new = plan.fingerprint not in self.known
        self.known.add(plan.fingerprint)
        return is_new


def search(
    profile: BackwardProfile,
    strategy: SearchableStrategy,
    num_workers: int,
    budget: BudgetTracker,
    max_steps: int,
    notes: list[str],
    runs_streams: bool = True,
    initial: Sequence[CommConfig] = (),
    factories: Mapping[str, Factory] = SEARCHERS,
    overlaps: Callable[[Plan], bool] = lambda plan: False,
) -> Generator[Trial, TrialResult | None, Search]:
    """Yields trials of settings until the steps or all proposals are spent; sent their results.

    The search starts with the initial settings and with a single unit, the safe plan. The first
    step of a plan, which instantiates its graph, is not a measurement.

    Args:
      profile: gradients in packing order.
      strategy: strategy that defines the settings.
      num_workers: number of workers.
      budget: grants every step.
      max_steps: limit on steps, including first steps of plans.
      notes: receives notes for users, such as a failed searcher.
      runs_streams: True if the engine runs all-reduces of several streams concurrently, and of
        parts of tensors.
      initial: settings to start with, the most promising first.
      factories: searchers by name.
      overlaps: returns whether gathers go on after a step under a plan. An unmeasured step precedes
        each of its measured steps, which so overlaps with gathers, too.
    """
    space = Space.for_strategy(strategy, profile, runs_streams)
    searchers = _make_searchers(space, strategy.seed, factories, notes)
    plans = _Plans(profile, strategy, num_workers, splits_tensors=runs_streams)
    found = Search()
    steps_left = max_steps

    simplest = CommConfig(space.unit_bytes[-1], space.num_streams[0], space.num_threads[0])
    pending = list(dict.fromkeys([*map(space.nearest, initial), simplest]))
    while steps_left > 0:
        name = START
        if pending:
            setting = pending.pop(0)
        else:
            proposal = _propose(searchers, found, strategy.exploration, notes)
            if proposal is None:
                break
            name, setting = proposal
        plan = plans.get(setting)
        seconds = None
        is_new, is_pair = plans.is_new(plan), overlaps(plan)
        for is_measured in (False, True) if is_new or is_pair else (True,):
            is_first = is_new and not is_measured
            if steps_left <= 0 or not budget.take_step(is_first):
                return found
            steps_left -= 1
            follows = is_pair and is_measured
            result = yield Trial(Phase.SEARCH, plan, False, is_first, is_consecutive=follows)
            seconds = None if result is None else result.seconds
        if seconds is None or seconds <= 0:  # the step was not observed
            continue
        found = found.with_trial(name, setting, seconds)
        _report(searchers, name, setting, seconds, notes)
    return found


def _make_searchers(
    space: Space, seed: int, factories: Mapping[str, Factory], notes: list[str]
) -> dict[str, Searcher]:
    searchers: dict[str, Searcher] = {}
    missing = []
    for name, make in factories.items():
        try:
            searchers[name] = make(space, seed)
        except ImportError:
            missing.append(name)
        except Exception as error:  # an error of Optuna must not end the training
            notes.append(f"searcher {name} could not start: {error!r}")
    if missing:
        notes.append(
            f"searchers {', '.join(missing)} need Optuna, which is not installed"
            " (pip install tf-libra[search])"
        )
    return searchers


def _propose(
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
    notes.append("all searchers are exhausted")
    return None


def _report(
    searchers: dict[str, Searcher],
    proposer: str,
    setting: CommConfig,
    seconds: float,
    notes: list[str],
) -> None:
    """Reports a step to all searchers; drops those that fail."""
    for name, searcher in list(searchers.items()):
        try:
            (searcher.tell if name == proposer else searcher.observe)(setting, seconds)
        except Exception as error:
            notes.append(f"searcher {name} failed: {error!r}")
            del searchers[name]
