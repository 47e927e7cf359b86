"""The papers' definitions written down naively, to hold the planners against."""

import functools
import itertools
import math

import numpy as np
from hypothesis import strategies as st

import tf_libra
from tests.drawing import fractions, pick
from tf_libra.specs.plan import Plan, TensorGroup


def simulate(profile, cost, stops, threads):
    """LIBRA's Eqs. 8-15 for groups that end at `stops`, literally; returns the sum of Eq. 7."""
    b = [float(x) for x in profile.compute_seconds]
    starts = [0, *stops[:-1]]
    group_b = [math.fsum(b[i:j]) for i, j in zip(starts, stops, strict=True)]
    group_c = [
        sum(int(x) for x in profile.num_bytes[i:j]) for i, j in zip(starts, stops, strict=True)
    ]
    K = len(stops)
    total = group_b[0]
    s = math.fsum(group_b[1:])
    for i in range(K):
        t_o, f_b, t_c = overlap(cost, group_c[i], s, threads[i])
        t_b = max(0.0, f_b - math.fsum(group_b[i + 2 :])) if i + 1 < K else 0.0
        total += t_o + t_b + t_c
        s = f_b - t_b
    return total


def overlap(cost, c, b, r):
    """f_o, f_b and f_c of Eqs. 8-11."""
    return overlap_times(*alone_and_overlapped(cost, c, r), b)


def alone_and_overlapped(cost, c, r):
    """p + a, q + a and the denominator of g for c bytes and r threads (Eqs. 4-6).

    While an all-reduce waits, computation keeps its speed.
    """
    if c == 0:
        return 0.0, 0.0, cost.compute[0] - cost.compute[1] * r
    N = cost.num_workers
    c_hat = 2 * (N - 1) / N * c
    a = 2 * (N - 1) * cost.hop_latency
    alone = cost.exclusive_hop_latency
    a_q = a if alone is None else 2 * (N - 1) * alone
    alpha1, alpha2 = cost.compute

    def rate(gammas):
        return gammas[0] - gammas[1] * math.exp(-gammas[2] * r**cost.exponent)

    waiting = cost.waiting if N > 1 else 0.0
    busy = c_hat / rate(cost.overlapped) + a
    computed = waiting + busy * (alpha1 - alpha2 * r)
    return (
        waiting + busy,
        waiting + c_hat / rate(cost.exclusive) + a_q,
        computed / (waiting + busy) if busy else alpha1 - alpha2 * r,
    )


def overlap_times(p, q, rate, b):
    """f_o, f_b and f_c of Eqs. 8-11 for what an all-reduce takes, nothing where it has no bytes."""
    g = b / rate
    f_o = min(p, g)
    delta_b = 0.0 if b == 0 else 1 - f_o / g
    delta_c = 0.0 if p == 0 else 1 - f_o / p
    return f_o, b * delta_b, q * delta_c


def all_stops(num_tensors, max_groups):
    """Every fusion into at most K groups."""
    for cuts in range(min(max_groups, num_tensors)):
        for inner in itertools.combinations(range(1, num_tensors), cuts):
            yield [*inner, num_tensors]


def all_plans(num_tensors, max_groups, allowed):
    """Every fusion into at most K groups, with all threads from R."""
    for stops in all_stops(num_tensors, max_groups):
        for threads in itertools.product(allowed, repeat=len(stops)):
            yield stops, threads


def best(profile, cost, max_groups, allowed):
    """The least time of all plans of at most K groups and threads from R."""
    count = len(profile.tensors)
    return _least(
        profile,
        cost,
        allowed,
        lambda start, groups: range(start + 1, count + 1) if groups + 1 < max_groups else (count,),
    )


def best_threads(profile, cost, stops, allowed):
    """The least time over all threads for given groups."""
    return _least(profile, cost, allowed, lambda start, groups: (stops[groups],))


def _least(profile, cost, allowed, next_stops):
    """The least time by `simulate` of all plans; what they begin with in common is added up once.

    Args:
      next_stops: where a group may end, by where it begins and how many there are before it.
    """
    b = [float(x) for x in profile.compute_seconds]
    c = [int(x) for x in profile.num_bytes]
    count = len(b)
    left = [math.fsum(b[i:]) for i in range(count + 1)]
    times = functools.cache(
        lambda start, stop, r: alone_and_overlapped(cost, sum(c[start:stop]), r)
    )

    def least(start, groups, total, f_b):
        """Returns the least time of plans from tensor `start` on, after `total` with `f_b` left."""
        if start == count:
            return total
        found = math.inf
        for stop in next_stops(start, groups):
            t_b = max(0.0, f_b - left[stop])
            for r in allowed:
                t_o, rest, t_c = overlap_times(*times(start, stop, r), min(f_b, left[stop]))
                found = min(found, least(stop, groups + 1, total + t_b + t_o + t_c, rest))
        return found

    return least(0, 0, 0.0, left[0])


def communication_starts(profile, cost, merged, num_threads):
    """When each all-reduce could start that waits for the one before; by what is merged so far."""
    starts, free, size = [], 0.0, 0
    for index, ready in enumerate(profile.compute_seconds.cumsum()):
        size += int(profile.num_bytes[index])
        starts.append(max(free, float(ready)))
        if not merged[index]:
            free = starts[-1] + float(cost.exclusive_all_reduce(size, num_threads))
            size = 0
    return starts


def algorithm1(profile, cost, K, Z, R):
    """T(K, L, Z) by LIBRA's Algorithm 1; chunk edges are compared to a relative 1e-9."""
    b = [float(x) for x in profile.compute_seconds]
    c = [int(x) for x in profile.num_bytes]
    L = len(b)
    w = math.fsum(b) / Z
    T = {(0, 0, z): z * w for z in range(Z + 1)}
    for i, done, z in itertools.product(range(1, K + 1), range(L + 1), range(Z + 1)):
        produced = math.fsum(b[:done])
        T[i, done, z] = min(
            (
                T.get((i - 1, before, began), math.inf)
                + stage_time(cost, sum(c[before:done]), z, began, Z, w, r)
                for began in range(z + 1)
                if began * w * (1 + 1e-9) >= produced
                for before in range(done + 1)
                for r in R
            ),
            default=math.inf,
        )
    return T[K, L, Z]


def equation17(profile, cost, stops, Z, R):
    """T(K, Z) by LIBRA's Eq. 17 for groups that end at `stops`."""
    w = math.fsum(profile.compute_seconds) / Z
    T = [z * w for z in range(Z + 1)]
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        produced = math.fsum(profile.compute_seconds[:stop])
        c = sum(int(x) for x in profile.num_bytes[start:stop])
        T = [
            min(
                (
                    T[began] + stage_time(cost, c, z, began, Z, w, r)
                    for began in range(z + 1)
                    if began * w * (1 + 1e-9) >= produced
                    for r in R
                ),
                default=math.inf,
            )
            for z in range(Z + 1)
        ]
    return T[Z]


def stage_time(cost, c, z, began, Z, w, r):
    """h of Eq. 19."""
    t_o, t_b, t_c = overlap(cost, c, (z - began) * w, r)
    # A residual within rounding is none.
    if z < Z and t_c > 1e-9 * overlap(cost, c, 0.0, r)[2]:
        return math.inf
    return t_o + t_b + t_c


@st.composite
def profiles(draw, max_tensors=5, updates=False):
    """Profiles with tensors of 0 bytes and of 0 seconds among others."""
    drawn = fractions(draw, 1 + 3 * max_tensors)
    count = pick(range(1, max_tensors + 1), drawn[0])
    size, *seconds = drawn[1:].reshape(3, max_tensors)[:, :count]
    # Of the sizes a third are 0 and a third up to 100, of the times half are 0.
    size = np.interp(size, (0, 1 / 3, 2 / 3, 1), (0, 0, 100, 5_000_000)).astype(int).tolist()
    compute, update = (
        np.where(fractions < 0.5, 0, np.interp(fractions, (0.5, 1), (1e-4, 1e-2))).tolist()
        for fractions in seconds
    )
    return tf_libra.BackwardProfile.from_arrays(
        size, compute, update_seconds=update if updates else None
    )


@st.composite
def part_plans(draw, profile, threads=(1, 2, 5), streams=(0,)):
    """Plans that cut tensors anywhere, some of them in several places."""
    count, most = len(profile.tensors), 6
    # How many cuts, each one's tensor and byte, and whether and how a group ends at each end.
    many, *drawn = fractions(draw, 1 + 2 * most + 3 * (count + most))
    cuts, hows = np.reshape(drawn[: 2 * most], (-1, 2)), np.reshape(drawn[2 * most :], (-1, 3))
    ends = [(tensor + 1, None) for tensor in range(count)]
    for where, byte in cuts[: pick(range(most + 1), many)].tolist():
        tensor = pick(range(count), where)
        num_bytes = profile.tensors[tensor].num_bytes
        if num_bytes > 1:
            ends.append((tensor + 1, pick(range(1, num_bytes), byte)))
    ends = sorted(set(ends), key=lambda end: (end[0], math.inf if end[1] is None else end[1]))
    groups, start, start_byte = [], 0, 0
    for (stop, stop_byte), (ending, *which) in zip(ends, hows.tolist(), strict=False):
        if ending >= 0.5 or (stop, stop_byte) == ends[-1]:
            r, stream = map(pick, (threads, streams), which)
            groups.append(TensorGroup(start, stop, r, stream, start_byte, stop_byte))
            start, start_byte = (stop, 0) if stop_byte is None else (stop - 1, stop_byte)
    return Plan.for_profile(profile, tuple(groups), 2, "by hand")


# Exponent, workers, latency of a hop, and of one that is alone.
_SETTINGS = st.sampled_from(
    list(itertools.product((0.6, 1.0), (1, 2, 3, 8), (0.0, 1e-6, 1e-4, 1e-3), (None, 1e-5, 5e-4)))
)


@st.composite
def any_costs(draw, threads):
    """Cost models with positive rates at these threads, whatever else they imply."""
    exponent, workers, latency, alone = draw(_SETTINGS)
    drawn = fractions(draw, 8).tolist()
    alpha1 = 0.2 + 1.1 * drawn[0]
    return tf_libra.ContentionModel(
        num_workers=workers,
        hop_latency=latency,
        compute=(alpha1, 0.95 * drawn[1] * alpha1 / max(threads)),
        overlapped=_gammas(*drawn[2:5]),
        exclusive=_gammas(*drawn[5:]),
        exponent=exponent,
        exclusive_hop_latency=alone,
    )


def _gammas(first, second, third):
    gamma1 = 1e8 + 4.9e9 * first
    return gamma1, 0.95 * second * gamma1, 2 * third


def obeys_assumptions(cost, threads):
    """Returns whether Assumptions 2 and 3 of LIBRA hold, and 0 < alpha1 - alpha2·r <= 1.

    Assumptions 2 and 3 hold for all sizes.
    """
    a, a_q = cost.startup_seconds, cost.exclusive_startup_seconds
    for r in threads:
        rate = float(cost.compute_rate(r))
        p, q = float(cost.overlapped_seconds(1, r)), float(cost.exclusive_seconds(1, r))
        # Linear in the size: the startup and the slope are enough.
        if not (rate <= 1 and p >= q and a >= a_q):
            return False
        if not (p * (1 - rate) <= q and a * (1 - rate) <= a_q):
            return False
    return True


@st.composite
def lawful_costs(draw, threads):
    """Cost models that satisfy LIBRA's Assumptions 2 and 3 at these threads; some wait."""
    _, workers, latency, _ = draw(_SETTINGS)
    drawn = fractions(draw, 6).tolist()
    alpha1 = 0.3 + 0.7 * drawn[0]
    alpha2 = 0.95 * drawn[1] * alpha1 / max(threads)
    gamma1, gamma2, gamma3 = _gammas(*drawn[2:5])
    # p = slower·q for all r, with slower·(1 - rate) <= 1.
    least_rate = alpha1 - alpha2 * max(threads)
    most = 1 / max(1 - least_rate, 1 / 3)
    slower = 1 + 0.99 * drawn[5] * (most - 1)
    cost = tf_libra.ContentionModel(
        num_workers=workers,
        hop_latency=latency,
        compute=(alpha1, alpha2),
        overlapped=(gamma1 / slower, gamma2 / slower, gamma3),
        exclusive=(gamma1, gamma2, gamma3),
        waiting=draw(st.sampled_from((0.0, 0.5 * latency, 20 * latency))),
    )
    assert obeys_assumptions(cost, threads)
    return cost
