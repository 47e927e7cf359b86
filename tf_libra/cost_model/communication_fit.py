"""Fit of transmission rates and startup overheads (LIBRA, Eqs. 3, 4, 6 and 9-11).

Residuals are logarithms of predicted over measured time under a robust loss, so that neither the
largest all-reduces nor a few disturbed ones decide.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model.assumptions import check_assumptions, keeps_assumptions
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.least_squares import Parameter, Solution, minimize
from tf_libra.cost_model.rate_form import RateForm, rate_values, share_done
from tf_libra.cost_model.samples import SampleColumns
from tf_libra.internal import formatting

_Array = NDArray[np.float64]

_MOST_GAIN = math.log(1e3)  # of a rate between the fewest and the most threads
_UNDETERMINED = 1.0  # standard error of a logarithm: not known to a factor of e
_BETTER = 10.0  # fall of n·log(cost) that justifies one more parameter
_DISTINCT = 1.25  # startups closer than this are one
_TINY = 1e-12
_MARGIN = 1e-6  # logarithmic margin of the assumptions, larger than rounding


def fit_communication(
    columns: SampleColumns, shape: ContentionModel, notes: list[str], warnings: list[str]
) -> ContentionModel:
    """Fit p, q and the startup overhead (Eqs. 3, 4 and 6).

    Args:
      columns: the samples.
      shape: model with the other parameters.
      notes: receives what the samples cannot determine, and the choice instead.
      warnings: receives contradictions between samples and assumptions.
    """
    transmitted = shape.transmitted_bytes(columns.num_bytes)
    wall = columns.overlap + columns.residual
    with np.errstate(over="ignore"):
        u = columns.threads**shape.exponent
    rate = RateForm(float(u.min()), float(u.max()))
    spent = {"overlapped": columns.overlap, "exclusive": columns.residual}
    fitted = [kind for kind, seconds in spent.items() if seconds.any()]

    startup = Parameter(*(math.log(wall.min() * part) for part in (0.5, 1e-6, 1e3)))
    parameters = {"startup": startup}
    fixed: dict[str, float] = {}
    for kind in fitted:
        some = spent[kind] > 0
        speeds = {
            float(r): float(np.median((transmitted / wall)[some & (columns.threads == r)]))
            for r in np.unique(columns.threads[some])
        }
        first = math.log(speeds[min(speeds)])
        parameters[f"{kind}.first"] = Parameter(first, first - _MOST_GAIN, first + 2 * _MOST_GAIN)
        low, high = (math.log(shape) for shape in rate.shapes())
        fixed[f"{kind}.shape"] = min(max(0.0, low), high)
        if len(speeds) == 1:
            fixed[f"{kind}.gain"] = 0.0
            notes.append(
                f"{kind}: r = {min(speeds):g} only; the rate is taken to be the same for all r"
            )
            continue
        gain = math.log(speeds[max(speeds)]) - first
        parameters[f"{kind}.gain"] = Parameter(
            min(max(gain, 0.05), _MOST_GAIN / 2), 0.0, _MOST_GAIN
        )
        if len(speeds) == 2:
            notes.append(f"{kind}: two thread counts do not determine gamma3")
        else:
            parameters[f"{kind}.shape"] = Parameter(fixed.pop(f"{kind}.shape"), low, high)

    def residuals(values: dict[str, float]) -> tuple[_Array, dict[str, _Array]]:
        done, slopes = np.zeros_like(wall), dict.fromkeys(values, np.zeros_like(wall))
        for kind in fitted:
            startup = f"{kind}.startup" if f"{kind}.startup" in values else "startup"
            rates = rate.seconds_per_byte(u, *rate_values(values, kind))
            part, changes = share_done(spent[kind], transmitted, math.exp(values[startup]), rates)
            done += part
            for name, change in changes.items():
                which = startup if name == "startup" else f"{kind}.{name}"
                slopes[which] = slopes[which] + change
        return np.log(done), {name: change / done for name, change in slopes.items()}

    solution = minimize(parameters, fixed, residuals)
    if len(fitted) == 2:
        own = Parameter(solution.values["startup"], startup.lower, startup.upper)
        other = minimize(parameters | {"exclusive.startup": own}, fixed, residuals)
        apart = abs(other.values["exclusive.startup"] - other.values["startup"])
        gained = len(wall) * math.log((solution.cost + _TINY) / (other.cost + _TINY))
        if apart > math.log(_DISTINCT) and gained > _BETTER:
            solution = other
            notes.append(
                "exclusive all-reduces fit clearly better with a separate startup overhead: "
                f"{formatting.time(math.exp(other.values['exclusive.startup']))}; overlapped: "
                f"{formatting.time(math.exp(other.values['startup']))}"
            )
    _note_undetermined(solution, notes)

    model = _model_of(solution.values, rate, fitted, shape)
    check_assumptions(model, columns, warnings)
    for kind, other_kind in (("overlapped", "exclusive"), ("exclusive", "overlapped")):
        if kind not in fitted:
            notes.append(f"{kind}: no sample; taken to be as {other_kind}")
    if keeps_assumptions(model, columns.threads):
        return model
    notes.append("p and q as fitted break Assumption 2 or 3; both are fitted again to keep them")
    return _fit_within_assumptions(solution.values, columns, rate, shape)


def _model_of(
    values: dict[str, float], rate: RateForm, fitted: Sequence[str], shape: ContentionModel
) -> ContentionModel:
    """Build the model of fitted values; a kind without samples takes the other's rate."""
    gammas = {kind: rate.gammas(*rate_values(values, kind)) for kind in fitted}
    [some, *_] = gammas.values()
    alone = values.get("exclusive.startup")
    return replace(
        shape,
        hop_latency=math.exp(values["startup"]) / shape.num_hops,
        overlapped=gammas.get("overlapped", some),
        exclusive=gammas.get("exclusive", some),
        exclusive_hop_latency=None if alone is None else math.exp(alone) / shape.num_hops,
    )


def _fit_within_assumptions(
    values: dict[str, float], columns: SampleColumns, rate: RateForm, shape: ContentionModel
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

    def times(limit: float, now: float) -> Parameter:
        """Returns the parameter log(p / q), above 0 and below the limit."""
        lower = min(_MARGIN, limit / 3)
        upper = max(limit - _MARGIN, 2 * limit / 3)
        return Parameter(min(max(now, lower), upper), lower, upper)

    def models(found: dict[str, float]) -> dict[str, float]:
        """Returns values for `_model_of` and `rate_values`."""
        first, gain = found["first"], found["gain"]
        rise = max(0.0, gain + found["first.times"] - found["last.times"])
        slower = first - found["first.times"]
        exclusive = found["startup"] - found["startup.times"]
        return {
            "startup": found["startup"],
            "exclusive.startup": exclusive,
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
            share_done(
                spent,
                transmitted,
                math.exp(named[startup]),
                rate.seconds_per_byte(u, *rate_values(named, kind)),
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
        "startup": Parameter(values["startup"], values["startup"] - 20, values["startup"] + 20),
        "first": Parameter(first, first - 2 * _MOST_GAIN, first + 2 * _MOST_GAIN),
        "gain": Parameter(gain, 0.0, _MOST_GAIN),
        "shape": Parameter(values["exclusive.shape"], low, high),
        "startup.times": times(limits[1], values["startup"] - alone),
    }
    # If p / q falls too fast in between, its value at the most threads is the limit everywhere.
    for limit in limits[0], limits[1]:
        ends = {"first.times": times(limit, ratios[0]), "last.times": times(limits[1], ratios[1])}
        found = minimize(free | ends, {}, residuals).values
        model = _model_of(models(found), rate, ("overlapped", "exclusive"), shape)
        if keeps_assumptions(model, columns.threads):
            break
    return model


def _note_undetermined(solution: Solution, notes: list[str]) -> None:
    """Add notes on parameters with a large standard error."""
    words = {
        "startup": "the startup overhead",
        "exclusive.startup": "the exclusive startup overhead",
        "first": "the rate",
        "gain": "the gain from more threads",
        "shape": "gamma3",
    }
    for name, deviation in solution.deviations.items():
        kind, _, part = name.rpartition(".")
        if part == "shape" and solution.values[f"{kind}.gain"] < _TINY:
            continue  # a constant rate has no shape
        if deviation > _UNDETERMINED:
            noun = words.get(name, words.get(part, part))
            prefix = f"{kind}: " if kind and name not in words else ""
            notes.append(f"{prefix}{noun} is hardly determined by these samples")
