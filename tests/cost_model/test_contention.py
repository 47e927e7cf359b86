import dataclasses
import json
import math

import numpy as np
import pytest

from tf_libra.cost_model import ContentionModel, OverlapSample

MODEL = ContentionModel(
    num_workers=8,
    hop_latency=1e-5,
    compute=(1.0, 1e-4),
    overlapped=(5e9, 4e9, 0.02),
    exclusive=(6e9, 4e9, 0.03),
)


def test_rates_follow_equations_5_and_6():
    c, r, b = 10**7, 256, 0.01
    c_hat = 2 * 7 / 8 * c
    assert MODEL.startup_seconds == pytest.approx(14e-5)
    assert MODEL.transmitted_bytes(c) == pytest.approx(c_hat)
    assert MODEL.computation_seconds(b, r) == pytest.approx(b / (1 - 1e-4 * r))
    p = c_hat / (5e9 - 4e9 * math.exp(-0.02 * r**0.6))
    q = c_hat / (6e9 - 4e9 * math.exp(-0.03 * r**0.6))
    assert MODEL.overlapped_seconds(c, r) == pytest.approx(p)
    assert MODEL.exclusive_seconds(c, r) == pytest.approx(q)
    assert MODEL.overlapped_all_reduce(c, r) == pytest.approx(p + 14e-5)
    assert MODEL.exclusive_all_reduce(c, r) == pytest.approx(q + 14e-5)


def test_arrays_broadcast():
    seconds = MODEL.overlapped_all_reduce(np.array([0, 1, 10]), np.array([[1], [2]]))
    assert seconds.shape == (2, 3)
    assert seconds[:, 0].tolist() == [0, 0]


def test_another_world_size_changes_startup_and_bytes_only():
    other = MODEL.with_workers(2)
    assert other.startup_seconds == pytest.approx(2e-5)
    assert other.transmitted_bytes(100) == pytest.approx(100)
    assert dataclasses.replace(other, num_workers=8) == MODEL


@pytest.mark.parametrize("hops", [None, 2])
def test_single_worker_communicates_in_zero_time(hops):
    alone = dataclasses.replace(MODEL, hops=hops).with_workers(1)
    assert float(alone.exclusive_all_reduce(10**9, 1)) == 0


def test_fixed_hops_hold_for_any_number_of_workers():
    lanes = dataclasses.replace(MODEL, num_workers=2, hops=2, exclusive_hop_latency=3e-5)
    ring = dataclasses.replace(lanes, hops=None)
    assert lanes.startup_seconds == ring.startup_seconds == pytest.approx(2e-5)
    for workers in (2, 3, 8, 500):
        more = lanes.with_workers(workers)
        assert more.startup_seconds == pytest.approx(2e-5)
        assert more.exclusive_startup_seconds == pytest.approx(6e-5)
        sent = ring.with_workers(workers).transmitted_bytes(100)
        assert more.transmitted_bytes(100) == sent


def test_two_levels_double_hops_if_hosts_are_full():
    lanes = dataclasses.replace(MODEL, num_workers=4, hops=2, workers_per_host=4)
    two_hops = lanes.startup_seconds
    expected = {1: 0, 2: 2, 4: 2, 6: 2, 8: 4, 9: 2, 64: 4}
    for workers, hops in expected.items():
        assert lanes.with_workers(workers).num_hops == hops
    assert lanes.with_workers(64).startup_seconds == pytest.approx(2 * two_hops)
    # A ring has one level whatever the hosts.
    assert dataclasses.replace(lanes, hops=None).with_workers(8).num_hops == 14


def test_grid_of_single_worker_hosts_doubles_hops():
    lanes = dataclasses.replace(MODEL, num_workers=4, hops=2, workers_per_host=1)
    expected = {1: 0, 2: 2, 15: 2, 16: 4, 17: 2, 36: 4, 67: 2}
    for workers, hops in expected.items():
        assert lanes.with_workers(workers).num_hops == hops
    # Fitted to four hops, and of another number of workers with two.
    square = dataclasses.replace(lanes, num_workers=16)
    assert square.with_workers(8).startup_seconds == pytest.approx(square.startup_seconds / 2)
    assert dataclasses.replace(lanes, workers_per_host=None).with_workers(16).num_hops == 2
    assert dataclasses.replace(lanes, hops=None).with_workers(16).num_hops == 30


@pytest.mark.parametrize("hops", [None, 2])
@pytest.mark.parametrize("alone", [None, 5e-6])
def test_slowed_model_is_slower_overlapped_and_exclusive(hops, alone):
    model = dataclasses.replace(MODEL, hops=hops, exclusive_hop_latency=alone)
    slower = model.slowed(1e-3, 1.5)
    for seconds in ("overlapped_seconds", "exclusive_seconds"):
        expected = 1.5 * getattr(model, seconds)(10**7, 64)
        assert getattr(slower, seconds)(10**7, 64) == pytest.approx(expected)
    assert slower.waiting == 1e-3 and slower.without_waiting().waiting == 0
    assert slower.startup_seconds == model.startup_seconds
    assert slower.exclusive_constant_seconds == pytest.approx(
        model.exclusive_startup_seconds + 1e-3
    )
    assert slower.compute == model.compute


def test_contention_free_has_full_speed_and_equal_rates():
    model = dataclasses.replace(MODEL, exclusive_hop_latency=2e-6)
    free = model.contention_free()
    assert free.compute == (1, 0)
    assert free.overlapped == free.exclusive == model.exclusive
    assert free.startup_seconds == free.exclusive_startup_seconds == pytest.approx(28e-6)


@pytest.mark.parametrize(("hops", "per_host"), [(None, None), (2, None), (2, 4)])
@pytest.mark.parametrize("latency", [None, 2e-6])
def test_json_round_trip_is_identical(latency, hops, per_host):
    model = dataclasses.replace(
        MODEL, exclusive_hop_latency=latency, hops=hops, workers_per_host=per_host
    )
    assert ContentionModel.from_json(model.to_json()) == model


def test_numpy_numbers_are_accepted():
    model = dataclasses.replace(MODEL, hops=np.int64(3), workers_per_host=np.int64(4))
    assert ContentionModel.from_json(model.to_json()) == model


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_workers": 0}, "num_workers must be from 1"),
        ({"hop_latency": -1e-9}, "hop_latency must be at least 0"),
        ({"hop_latency": math.nan}, "hop_latency must be a finite number"),
        ({"compute": (0, 0)}, "compute: alpha1 must be greater than 0"),
        ({"compute": (1, -0.1)}, "compute: alpha2 must be at least 0"),
        ({"compute": (1,)}, r"compute must be \(alpha1, alpha2\)"),
        ({"overlapped": (0, 0, 0)}, "overlapped: gamma1 must be greater than 0"),
        ({"overlapped": (1, 0, math.inf)}, "overlapped: gamma3 must be a finite number"),
        ({"exclusive": (1, -1, 0)}, "exclusive: gamma2 must be at least 0"),
        ({"exclusive": 3}, "exclusive must be a list"),
        ({"exponent": 0}, "exponent must be greater than 0"),
        ({"hops": 0}, "hops must be from 1"),
        ({"workers_per_host": 0}, "workers_per_host must be from 1"),
        ({"exclusive_hop_latency": "1"}, "exclusive_hop_latency must be a finite number"),
    ],
)
def test_wrong_parameter_is_named(change, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(MODEL, **change)


def test_wrong_json_is_named():
    value = json.loads(MODEL.to_json())
    with pytest.raises(ValueError, match="unknown keys"):
        ContentionModel.from_json(json.dumps(value | {"beta": 1}))
    with pytest.raises(ValueError, match="lacks the keys"):
        ContentionModel.from_json(json.dumps({k: v for k, v in value.items() if k != "compute"}))


def test_rate_not_positive_at_requested_threads_is_rejected():
    with pytest.raises(ValueError, match="positive at r = 10000, got 0"):
        MODEL.compute_rate([1, 10_000])
    with pytest.raises(ValueError, match=r"exclusive: .*positive at r = 1"):
        dataclasses.replace(MODEL, exclusive=(1, 5, 0.1)).exclusive_rate(1)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_bytes": 0}, "num_bytes must be from 1"),
        ({"num_threads": 0}, "num_threads must be from 1"),
        ({"overlap_seconds": -1}, "overlap_seconds must be at least 0"),
        ({"residual_seconds": math.nan}, "residual_seconds must be a finite number"),
        ({"overlap_seconds": 0, "compute_seconds": 0, "residual_seconds": 0}, "greater than 0"),
        ({"overlap_seconds": 0}, "compute_seconds must be 0 if overlap_seconds is 0"),
    ],
)
def test_wrong_sample_is_named(change, word):
    good = {
        "num_bytes": 1,
        "num_threads": 1,
        "compute_seconds": 1,
        "overlap_seconds": 1,
        "residual_seconds": 1,
    }
    assert OverlapSample(**good).wall_seconds == 2
    with pytest.raises(ValueError, match=word):
        OverlapSample(**(good | change))
