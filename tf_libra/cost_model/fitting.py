"""Fit of a contention model to measured all-reduces (LIBRA, III-A and Algorithm 2, line 3).

Residuals are logarithms of predicted over measured time under a robust loss, so that neither the
largest all-reduces nor a few disturbed ones decide. Rates are parametrised by their values at the
fewest and the most sampled threads, which keeps them positive and monotone in between. The model
keeps LIBRA's Assumptions 2 and 3 whatever the samples say: planners rely on them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel, OverlapSample
from tf_libra.cost_model.least_squares import split_fun_and_jac
from tf_libra.internal import formatting, validation

_Array = NDArray[np.float64]

_OUTLIER = 0.1  # residuals beyond 10 % count less and less
_LEAST_RATE = 1e-3  # of alpha1 - alpha2·r over the sampled r
_MOST_GAIN = math.log(1e3)  # of a rate between the fewest and the most threads
_SHAPE = (0.1, 10.0)  # gamma3 times the sampled range of r**gamma4
_MOST_DECAY = 50.0  # gamma3 times r**gamma4 at the fewest threads: the exponential stays normal
_LEAST_NOISE = 0.01  # no time is measured better than this
_UNDETERMINED = 1.0  # standard error of a logarithm: not known to a factor of e
_NOTABLE = 1.1  # deviations below 10 % are left to noise
_BETTER = 10.0  # fall of n·log(cost) that pays for one more parameter
_DISTINCT = 1.25  # startups closer than this are one
_TINY = 1e-12
_MARGIN = 1e-6  # by which the assumptions hold, of the logarithm: rounding is less
_CHECKED = 33  # thread counts, over the sampled range, at which they are looked at


@dataclass(frozen=True)
class FitResult:
    """A fitted model and how far it can be trusted.

    Attributes:
      model: the fitted model.
      median_error: median of |`prediction_errors`| over the samples it was fitted to.
      median_computation_error: median of |`computation_errors`|; None where nothing overlapped.
      notes: what the samples could not determine, and what was chosen.
      warnings: where the samples contradict an assumption of the planners or the formulas' form.
    """

    model: ContentionModel
    median_error: float
    median_computation_error: float | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Samples:
    """Samples by column, each of shape [n]."""

    num_bytes: _Array
    threads: _Array
    compute: _Array
    overlap: _Array
    residual: _Array

    @classmethod
    def of(cls, samples: Sequence[OverlapSample]) -> "_Samples":
        if not samples:
            raise ValueError("samples must hold at least one sample, got none")
        for index, sample in enumerate(samples):
            validation.instance(f"samples[{index}]", sample, OverlapSample)
        rows = [
            (s.num_bytes, s.num_threads, s.compute_seconds, s.overlap_seconds, s.residual_seconds)
            for s in samples
        ]
        return cls(*np.array(rows, np.float64).T)


def prediction_errors(model: CostModel, samples: Sequence[OverlapSample]) -> NDArray[np.float64]:
    """Relative errors of the predicted all-reduce times, shape [n]; positive: predicted longer.

    By LIBRA's Eqs. 9-11 an all-reduce is done when overlap/(p + a) + residual/(q + a) = 1. Where
    the model puts the sum at f instead, it predicts 1/f times the measured time.

    Raises:
      ValueError: no samples, one worker, or a rate that is not positive at a sample's threads.
    """
    if model.num_workers < 2:
        raise ValueError(f"num_workers must be at least 2, got {model.num_workers}")
    columns = _Samples.of(samples)
    overlapped = model.overlapped_all_reduce(columns.num_bytes, columns.threads)
    exclusive = model.exclusive_all_reduce(columns.num_bytes, columns.threads)
    return 1 / (columns.overlap / overlapped + columns.residual / exclusive) - 1


def computation_errors(model: CostModel, samples: Sequence[OverlapSample]) -> NDArray[np.float64]:
    """Relative errors of g(b, r) against the measured overlap.

    Shape [m] for the m samples with computation, in their order.

    Raises:
      ValueError: no samples, or a rate that is not positive at a sample's threads.
    """
    columns = _Samples.of(samples)
    some = columns.compute > 0
    predicted = model.computation_seconds(columns.compute[some], columns.threads[some])
    return predicted / columns.overlap[some] - 1


def fit(
    samples: Sequence[OverlapSample],
    num_workers: int,
    exponent: float = 0.6,
    hops: int | None = None,
    workers_per_host: int | None = None,
) -> FitResult:
    """Fit g, p, q and the startup overhead to measured all-reduces.

    Exclusive, overlapped and mixed all-reduces are fitted together: each is to satisfy
    overlap/(p + a) + residual/(q + a) = 1 (LIBRA, Eqs. 9-11). All-reduces without overlap get a
    startup overhead of their own where the samples are fitted clearly better with one. What the
    samples cannot determine takes its simplest value, and `notes` say so; the model is always
    finite and its rates are positive over the sampled threads.

    There, and for all sizes, it keeps LIBRA's Assumption 2 (an all-reduce is no faster overlapped
    than exclusive) and Assumption 3 (overlapping is no slower than running one after the other).
    Where the samples contradict one, `warnings` say by how much, and the closest model that keeps
    both is taken.

    Args:
      samples: measured on `num_workers` workers; some tens to hundreds, over several r and sizes.
      num_workers: N >= 2.
      exponent: gamma4 of Eq. 6, not fitted.
      hops: as for `ContentionModel`; None: those of a ring.
      workers_per_host: as for `ContentionModel`; None: an all-reduce has one level.

    Raises:
      ValueError: no samples, or an argument out of its range.
    """
    num_workers = validation.integer("num_workers", num_workers, 2, validation.MAX_INT32)
    exponent = validation.real("exponent", exponent, above=0)
    columns = _Samples.of(samples)
    notes: list[str] = []
    warnings: list[str] = []
    compute = _fit_computation(columns, notes, warnings)
    levels = {"hops": hops, "workers_per_host": workers_per_host}
    shape = ContentionModel(num_workers, 0.0, compute, (1, 0, 0), (1, 0, 0), exponent, **levels)
    model = _fit_communication(columns, shape, notes, warnings)
    errors = np.abs(computation_errors(model, samples))
    return FitResult(
        model=model,
        median_error=float(np.median(np.abs(prediction_errors(model, samples)))),
        median_computation_error=float(np.median(errors)) if errors.size else None,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _fit_computation(
    columns: _Samples, notes: list[str], warnings: list[str]
) -> tuple[float, float]:
    """Returns (alpha1, alpha2) with 0 < alpha1 - alpha2·r <= 1 over the sampled r (Eq. 5)."""
    some = columns.compute > 0
    if not some.any():
        notes.append("compute: no sample overlaps computation; taken as (1, 0), no contention")
        return 1.0, 0.0
    ratio = columns.compute[some] / columns.overlap[some]
    threads = columns.threads[some]
    least, most = columns.threads.min(), columns.threads.max()
    one = threads.min() == threads.max()
    # A short overlap is measured with a large relative error.
    weight = np.minimum(1.0, columns.overlap[some] / np.median(columns.overlap[some]))

    def rate(parameters: _Array) -> _Array:
        place = (threads - least) / (most - least) if most > least else np.zeros_like(threads)
        return parameters[0] * (1 - place * (1 - (1.0 if one else parameters[1])))

    solution = optimize.least_squares(
        lambda parameters: weight * np.log(ratio / rate(parameters)),
        x0=np.array([0.8] if one else [0.8, 0.8]),
        bounds=(_LEAST_RATE, 1.0),
        loss="soft_l1",
        f_scale=_OUTLIER,
    )
    first = float(solution.x[0])
    if one:
        notes.append(
            f"compute: overlapped with r = {threads[0]:g} only, which does not determine alpha2; "
            "taken as 0"
        )
        return first, 0.0
    alpha2 = first * (1 - float(solution.x[1])) / float(most - least)
    for r in np.unique(threads):
        measured = float(np.median(ratio[threads == r]))
        if measured > _NOTABLE:
            warnings.append(
                f"compute: beside r = {r:g} threads computation ran {measured:.2f} times as "
                "fast as profiled alone; the model takes 1 at most"
            )
    return first + alpha2 * float(least), alpha2


@dataclass(frozen=True)
class _Rate:
    """A transmission rate of Eq. 6 by its value at the fewest threads, its gain, and its shape.

    With u = r**gamma4, from u0 at the fewest sampled threads to u1 at the most, and gamma3 =
    shape / (u1 - u0): rate = first·(1 + (exp(gain) - 1)·rise), where rise goes from 0 at u0 to 1
    at u1 as 1 - exp(-gamma3·(u - u0)) does.
    """

    u0: float
    u1: float

    def seconds_per_byte(
        self, u: _Array, first: float, gain: float, shape: float
    ) -> tuple[_Array, dict[str, _Array]]:
        """1 / rate, and its derivatives by the logarithms of `first` and `shape`, and by `gain`."""
        if self.u1 == self.u0:
            per_byte = np.full_like(u, 1 / first)
            return per_byte, {"first": -per_byte, "gain": 0 * u, "shape": 0 * u}
        place = (u - self.u0) / (self.u1 - self.u0)
        decay, whole = np.expm1(-shape * place), math.expm1(-shape)
        rise = decay / whole
        steeper = shape * (decay * math.exp(-shape) - place * (1 + decay) * whole) / whole**2
        gained = math.expm1(gain)
        per_byte = 1 / (first * (1 + gained * rise))
        per_gain = -first * per_byte**2
        return per_byte, {
            "first": -per_byte,
            "gain": per_gain * (1 + gained) * rise,
            "shape": per_gain * gained * steeper,
        }

    def shapes(self) -> tuple[float, float]:
        """The range of `shape` in which gamma2 stays finite."""
        if self.u1 == self.u0:
            return _SHAPE
        most = min(_SHAPE[1], _MOST_DECAY * (self.u1 - self.u0) / self.u0)
        return min(_SHAPE[0], most / 10), most

    def gammas(self, first: float, gain: float, shape: float) -> tuple[float, float, float]:
        if self.u1 == self.u0 or gain == 0:
            return first, 0.0, 0.0
        gamma3 = shape / (self.u1 - self.u0)
        total = first * math.expm1(gain) / -math.expm1(-shape)
        return first + total, total * math.exp(gamma3 * self.u0), gamma3


@dataclass(frozen=True)
class _Parameter:
    """A fitted parameter, all of them logarithms: where the search starts and its range."""

    start: float
    lower: float
    upper: float


@dataclass(frozen=True)
class _Solution:
    """Fitted and fixed values by name, the cost, and the fitted values' standard errors."""

    values: dict[str, float]
    cost: float
    deviations: dict[str, float]


def _fit_communication(
    columns: _Samples, shape: ContentionModel, notes: list[str], warnings: list[str]
) -> ContentionModel:
    """Fits p, q and the startup overhead (Eqs. 3, 4 and 6); the rest of the model is `shape`'s."""
    transmitted = shape.transmitted_bytes(columns.num_bytes)
    wall = columns.overlap + columns.residual
    with np.errstate(over="ignore"):
        u = columns.threads**shape.exponent
    rate = _Rate(float(u.min()), float(u.max()))
    spent = {"overlapped": columns.overlap, "exclusive": columns.residual}
    fitted = [kind for kind, seconds in spent.items() if seconds.any()]

    startup = _Parameter(*(math.log(wall.min() * part) for part in (0.5, 1e-6, 1e3)))
    parameters = {"startup": startup}
    fixed: dict[str, float] = {}
    for kind in fitted:
        some = spent[kind] > 0
        speeds = {
            float(r): float(np.median((transmitted / wall)[some & (columns.threads == r)]))
            for r in np.unique(columns.threads[some])
        }
        first = math.log(speeds[min(speeds)])
        parameters[f"{kind}.first"] = _Parameter(first, first - _MOST_GAIN, first + 2 * _MOST_GAIN)
        low, high = (math.log(shape) for shape in rate.shapes())
        fixed[f"{kind}.shape"] = min(max(0.0, low), high)
        if len(speeds) == 1:
            fixed[f"{kind}.gain"] = 0.0
            notes.append(
                f"{kind}: r = {min(speeds):g} only; the rate is taken to be the same for all r"
            )
            continue
        gain = math.log(speeds[max(speeds)]) - first
        parameters[f"{kind}.gain"] = _Parameter(
            min(max(gain, 0.05), _MOST_GAIN / 2), 0.0, _MOST_GAIN
        )
        if len(speeds) == 2:
            notes.append(f"{kind}: two thread counts do not determine gamma3")
        else:
            parameters[f"{kind}.shape"] = _Parameter(fixed.pop(f"{kind}.shape"), low, high)

    def residuals(values: dict[str, float]) -> tuple[_Array, dict[str, _Array]]:
        done, slopes = np.zeros_like(wall), dict.fromkeys(values, np.zeros_like(wall))
        for kind in fitted:
            startup = f"{kind}.startup" if f"{kind}.startup" in values else "startup"
            rates = rate.seconds_per_byte(u, *_rate_values(values, kind))
            part, changes = _done(spent[kind], transmitted, math.exp(values[startup]), rates)
            done += part
            for name, change in changes.items():
                which = startup if name == "startup" else f"{kind}.{name}"
                slopes[which] = slopes[which] + change
        return np.log(done), {name: change / done for name, change in slopes.items()}

    solution = _minimise(parameters, fixed, residuals)
    if len(fitted) == 2:
        own = _Parameter(solution.values["startup"], startup.lower, startup.upper)
        other = _minimise(parameters | {"exclusive.startup": own}, fixed, residuals)
        apart = abs(other.values["exclusive.startup"] - other.values["startup"])
        gained = len(wall) * math.log((solution.cost + _TINY) / (other.cost + _TINY))
        if apart > math.log(_DISTINCT) and gained > _BETTER:
            solution = other
            notes.append(
                "all-reduces without overlap fit clearly better with a startup overhead of "
                "their own: "
                f"{formatting.time(math.exp(other.values['exclusive.startup']))}, beside"
                " computation "
                f"{formatting.time(math.exp(other.values['startup']))}"
            )
    _note_undetermined(solution, notes)

    model = _model_of(solution.values, rate, fitted, shape)
    _check_assumptions(model, columns, warnings)
    for kind, other_kind in (("overlapped", "exclusive"), ("exclusive", "overlapped")):
        if kind not in fitted:
            notes.append(f"{kind}: no sample; taken to be as {other_kind}")
    if _keeps_assumptions(model, columns.threads):
        return model
    notes.append("p and q as fitted break Assumption 2 or 3; both are fitted again to keep them")
    return _fit_within_assumptions(solution.values, columns, rate, shape)


def _model_of(
    values: dict[str, float], rate: "_Rate", fitted: Sequence[str], shape: ContentionModel
) -> ContentionModel:
    """Build the model of fitted values; a kind without samples takes the other's rate."""
    gammas = {kind: rate.gammas(*_rate_values(values, kind)) for kind in fitted}
    [some, *_] = gammas.values()
    alone = values.get("exclusive.startup")
    return replace(
        shape,
        hop_latency=math.exp(values["startup"]) / shape.num_hops,
        overlapped=gammas.get("overlapped", some),
        exclusive=gammas.get("exclusive", some),
        exclusive_hop_latency=None if alone is None else math.exp(alone) / shape.num_hops,
    )


def _checked_threads(threads: _Array) -> _Array:
    """Return the sampled thread counts and some between them."""
    return np.union1d(threads, np.linspace(threads.min(), threads.max(), _CHECKED))


def _keeps_assumptions(model: ContentionModel, threads: _Array) -> bool:
    """Return True if Assumptions 2 and 3 hold for every size; both are linear in the size."""
    r = _checked_threads(threads)
    lost = 1 - model.compute_rate(r)
    startups = model.startup_seconds, model.exclusive_startup_seconds
    rates = model.overlapped_seconds(1, r), model.exclusive_seconds(1, r)
    return all(np.all(p >= q) and np.all(p * lost <= q) for p, q in (startups, rates))


def _fit_within_assumptions(
    values: dict[str, float], columns: _Samples, rate: "_Rate", shape: ContentionModel
) -> ContentionModel:
    """Fit p as a multiple of q that is at least 1 and at most 1 / (1 - compute rate at r).

    Both have the same gamma3. Then p / q lies, at any r in between, between what it is at the
    fewest and at the most threads. The least 1 / (1 - rate) is that at the most threads; as long as
    p / q falls with r no faster than it, p / q may be larger at the fewest.
    """
    r = np.array([columns.threads.min(), columns.threads.max()])
    lost = np.maximum(1 - shape.compute_rate(r), math.exp(-_MOST_GAIN))
    limits = (-np.log(lost)).tolist()
    transmitted = shape.transmitted_bytes(columns.num_bytes)
    u = columns.threads**shape.exponent

    def times(limit: float, now: float) -> _Parameter:
        """The logarithm of p over q, above 0 and below the limit."""
        lower = min(_MARGIN, limit / 3)
        upper = max(limit - _MARGIN, 2 * limit / 3)
        return _Parameter(min(max(now, lower), upper), lower, upper)

    def models(found: dict[str, float]) -> dict[str, float]:
        """Values as `_model_of` and `_rate_values` take them."""
        first, gain = found["first"], found["gain"]
        rise = max(0.0, gain + found["first.times"] - found["last.times"])
        slower = first - found["first.times"]
        alone = found["startup"] - found["startup.times"]
        return {
            "startup": found["startup"],
            "exclusive.startup": alone,
            "exclusive.first": first,
            "exclusive.gain": gain,
            "exclusive.shape": found["shape"],
            "overlapped.first": slower,
            "overlapped.gain": rise,
            "overlapped.shape": found["shape"],
        }

    def residuals(found: dict[str, float]) -> tuple[_Array, dict[str, _Array]]:
        named = models(found)
        (p_done, p), (q_done, q) = (
            _done(
                spent,
                transmitted,
                math.exp(named[startup]),
                rate.seconds_per_byte(u, *_rate_values(named, kind)),
            )
            for kind, spent, startup in (
                ("overlapped", columns.overlap, "startup"),
                ("exclusive", columns.residual, "exclusive.startup"),
            )
        )
        done = p_done + q_done
        rises = named["overlapped.gain"] > 0
        slopes = {
            "startup": p["startup"] + q["startup"],
            "first": p["first"] + q["first"],
            "gain": rises * p["gain"] + q["gain"],
            "shape": p["shape"] + q["shape"],
            "startup.times": -q["startup"],
            "first.times": rises * p["gain"] - p["first"],
            "last.times": -rises * p["gain"],
        }
        return np.log(done), {name: change / done for name, change in slopes.items()}

    low, high = (math.log(limit) for limit in rate.shapes())
    first = values["exclusive.first"]
    gain = values["exclusive.gain"]
    slower = first - values["overlapped.first"]
    ratios = slower, slower + gain - values["overlapped.gain"]
    alone = values.get("exclusive.startup", values["startup"])
    free = {
        "startup": _Parameter(values["startup"], values["startup"] - 20, values["startup"] + 20),
        "first": _Parameter(first, first - 2 * _MOST_GAIN, first + 2 * _MOST_GAIN),
        "gain": _Parameter(gain, 0.0, _MOST_GAIN),
        "shape": _Parameter(values["exclusive.shape"], low, high),
        "startup.times": times(limits[1], values["startup"] - alone),
    }
    # Where p / q falls too fast in between, it may nowhere be more than at the most threads.
    for limit in limits[0], limits[1]:
        ends = {"first.times": times(limit, ratios[0]), "last.times": times(limits[1], ratios[1])}
        found = _minimise(free | ends, {}, residuals).values
        model = _model_of(models(found), rate, ("overlapped", "exclusive"), shape)
        if _keeps_assumptions(model, columns.threads):
            break
    return model


def _done(
    spent: _Array,
    transmitted: _Array,
    startup: float,
    rates: tuple[_Array, dict[str, _Array]],
) -> tuple[_Array, dict[str, _Array]]:
    """Return the share of each all-reduce that is done in the spent seconds.

    The derivatives are by the logarithm of the startup overhead, and by the parameters of
    `_Rate.seconds_per_byte`.
    """
    per_byte, slopes = rates
    seconds = startup + per_byte * transmitted
    done = spent / seconds
    falls = -done / seconds
    return done, {
        "startup": startup * falls,
        **{name: falls * transmitted * slope for name, slope in slopes.items()},
    }


def _rate_values(values: dict[str, float], kind: str) -> tuple[float, float, float]:
    """First rate, logarithm of the gain, and shape."""
    return (
        math.exp(values[f"{kind}.first"]),
        values[f"{kind}.gain"],
        math.exp(values[f"{kind}.shape"]),
    )


def _minimise(
    parameters: dict[str, _Parameter],
    fixed: dict[str, float],
    residuals: Callable[[dict[str, float]], tuple[_Array, dict[str, _Array]]],
) -> _Solution:
    """Returns the least robust cost over several starts.

    Args:
      parameters: to be fitted.
      fixed: values of the others.
      residuals: by values by name, and their derivatives by each of them.
    """
    names = list(parameters)
    lower = np.array([p.lower for p in parameters.values()])
    upper = np.array([p.upper for p in parameters.values()])
    start = np.array([p.start for p in parameters.values()])

    def named(vector: _Array) -> dict[str, float]:
        return dict(zip(names, vector.tolist(), strict=True)) | fixed

    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        found, slopes = residuals(dict(zip(names, point, strict=True)) | fixed)
        return found, np.stack([slopes[name] for name in names], axis=1)

    missed, missed_slopes = split_fun_and_jac(around)
    with np.errstate(all="ignore"):
        if not np.isfinite(missed(np.clip(start, lower, upper))).all():
            raise ValueError(
                "samples must be of times, sizes and numbers of threads to the power of exponent"
                " that are finite, and no more than some hundred orders of magnitude apart"
            )
    solutions = []
    for startup_shift in (0.0, -3.0):
        shifted = start + startup_shift * np.array([name.endswith("startup") for name in names])
        solutions.append(
            optimize.least_squares(
                missed,
                np.clip(shifted, lower + 1e-9, upper - 1e-9),
                missed_slopes,
                bounds=(lower, upper),
                loss="soft_l1",
                f_scale=_OUTLIER,
                x_scale="jac",
            )
        )
    best = min(solutions, key=lambda solution: solution.cost)
    # Standard errors from the Gauss-Newton Hessian; a direction without curvature has none.
    curvature, directions = np.linalg.eigh(best.jac.T @ best.jac)
    variance = max(_LEAST_NOISE**2, 2 * best.cost / max(1, len(best.fun) - len(names)))
    spread = directions**2 / np.maximum(curvature, _TINY)
    deviations = np.sqrt(variance * spread.sum(axis=1))
    return _Solution(
        named(best.x), float(best.cost), dict(zip(names, deviations.tolist(), strict=True))
    )


def _note_undetermined(solution: _Solution, notes: list[str]) -> None:
    words = {
        "startup": "the startup overhead",
        "exclusive.startup": "the startup overhead without overlap",
        "first": "the rate",
        "gain": "what more threads gain",
        "shape": "gamma3",
    }
    for name, deviation in solution.deviations.items():
        kind, _, part = name.rpartition(".")
        if part == "shape" and solution.values[f"{kind}.gain"] < _TINY:
            continue  # a constant rate has no shape
        if deviation > _UNDETERMINED:
            what = words.get(name, words.get(part, part))
            where = f"{kind}: " if kind and name not in words else ""
            notes.append(f"{where}{what} is hardly determined by these samples")


def _check_assumptions(model: ContentionModel, columns: _Samples, warnings: list[str]) -> None:
    """Warns where the model breaks LIBRA's Assumptions 2 and 3 at a typical size."""
    size = float(np.median(columns.num_bytes))
    for r in np.unique(columns.threads):
        overlapped = float(model.overlapped_all_reduce(size, r))
        exclusive = float(model.exclusive_all_reduce(size, r))
        kept = float(model.compute_rate(r))
        where = f"at r = {r:g} and {formatting.size(size)}"
        if overlapped * _NOTABLE < exclusive:
            warnings.append(
                f"{where} an all-reduce is faster beside computation"
                f" ({formatting.time(overlapped)}) "
                f"than alone ({formatting.time(exclusive)}): Assumption 2 does not hold"
            )
        if overlapped * (1 - kept) > exclusive * _NOTABLE:
            warnings.append(
                f"{where} overlapping is slower than one after the other "
                f"({formatting.time(overlapped)} against"
                f" {formatting.time(overlapped * kept + exclusive)}): "
                "Assumption 3 does not hold"
            )
    _check_rates(model, columns, warnings)


def _check_rates(model: ContentionModel, columns: _Samples, warnings: list[str]) -> None:
    """Warns where more threads were slower: the formula can only hold the rate constant."""
    overlapped = model.overlapped_all_reduce(columns.num_bytes, columns.threads)
    exclusive = model.exclusive_all_reduce(columns.num_bytes, columns.threads)
    for kind, gammas, ratio in (
        ("overlapped", model.overlapped, columns.overlap / overlapped),
        ("exclusive", model.exclusive, columns.residual / exclusive),
    ):
        whole = (columns.overlap == 0) | (columns.residual == 0)
        whole &= ratio > 0
        threads = np.unique(columns.threads[whole])
        if threads.size < 2 or gammas[1] > _TINY * gammas[0]:
            continue
        fewest, most = (
            float(np.median(ratio[whole & (columns.threads == r)])) for r in threads[[0, -1]]
        )
        if most > _NOTABLE * fewest:
            warnings.append(
                f"{kind}: all-reduces took {most / fewest:.2f} times as long with "
                f"{threads[-1]:g} threads as with {threads[0]:g}; the formula's rate never "
                "falls with r, and is fitted as constant"
            )
