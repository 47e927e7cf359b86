import math

import numpy as np
import pytest

from tf_libra.specs.scaling_profile import ScalingProfile

COMPUTE = [[4.0, 2.0], [2.0, 1.0], [1.0, 1.0]]
NONE = [[0.0, 0.0]] * 3
MOVES = np.full((2, 2, 2), 0.25)


def chain(**changes):
    given = {
        "device_counts": [1, 2],
        "compute_seconds": COMPUTE,
        "synchronize_seconds": NONE,
        "transition_seconds": MOVES,
    }
    return ScalingProfile.chain(**(given | changes))


def graph(**changes):
    given = {
        "device_counts": [1, 2],
        "compute_seconds": COMPUTE,
        "synchronize_seconds": NONE,
        "edges": [(0, 2), (2, 1)],
        "transition_seconds": MOVES,
    }
    return ScalingProfile.graph(**(given | changes))


def test_json_round_trip_is_identical():
    for profile in (chain(), chain(batch=4, names=["a", "b", "c"]), graph(move_seconds=MOVES)):
        again = ScalingProfile.from_json(profile.to_json())
        assert again == profile
        assert again.fingerprint == profile.fingerprint
        assert again.to_json() == profile.to_json()


def test_fingerprint_covers_every_field():
    assert len({p.fingerprint for p in (chain(), chain(batch=4), graph(), graph(
        move_seconds=MOVES
    ))}) == 4  # fmt: skip
    assert chain() != graph()
    assert chain() == chain()


def test_order_is_topological():
    assert graph().order == (0, 2, 1)
    assert not graph().is_chain
    assert chain().is_chain
    assert chain().edges == ((0, 1), (1, 2))


def test_one_layer_has_no_edges():
    profile = ScalingProfile.chain([1], [[2.0]], [[0.0]], [])
    assert profile.edges == ()
    assert profile.transition_seconds.shape == (0, 1, 1)


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        chain().compute_seconds[0, 0] = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_counts": [2, 4]}, r"device_counts must begin with 1, got \(2, 4\)"),
        ({"device_counts": []}, "device_counts must begin with 1"),
        ({"device_counts": [1, 1]}, "device_counts must be ascending, got 1 after 1"),
        ({"device_counts": [1, 0]}, "device_counts must be from 1 to"),
        ({"device_counts": [1, 2.5]}, "device_counts must be an integer, got 2.5"),
        ({"device_counts": 2}, "device_counts must be a list"),
        ({"device_counts": [1, 2, 4]}, r"compute_seconds must have the shape .* = \[3, 3\]"),
        ({"batch": 3}, "device_counts must divide the batch of 3, got 2"),
        ({"batch": 1}, "device_counts must divide the batch of 1, got 2"),
        ({"batch": 0}, "batch must be from 1"),
        (
            {"compute_seconds": [[4.0, 2.0], [math.nan, 1.0], [1.0, 1.0]]},
            r"compute_seconds\[1\]\[0\] must be a finite number of seconds, at least 0, got nan",
        ),
        (
            {"compute_seconds": [[4.0, 2.0], [None, 1.0], [1.0, 1.0]]},
            r"\[1\]\[0\] must be .* got None",
        ),
        ({"compute_seconds": [[4.0, 2.0], [1.0], [1.0, 1.0]]}, r"compute_seconds must be numbers"),
        ({"compute_seconds": [["4", 10**30]] * 3}, r"compute_seconds\[0\]\[0\] must .* got '4'"),
        ({"compute_seconds": [[True, 2]] * 3}, r"compute_seconds\[0\]\[0\] must be .* got True"),
        ({"transition_seconds": [[[0.0, False]] * 2] * 2}, r"\[0\]\[0\]\[1\] must .* got False"),
        ({"device_counts": [1, 2**20 + 1]}, "device_counts must be from 1 to 1048576"),
        ({"compute_seconds": [[10**400, 1.0]] * 3}, "compute_seconds must be finite numbers"),
        ({"compute_seconds": []}, "names must hold at least one layer"),
        ({"synchronize_seconds": [[0.0, -1.0]] * 3}, r"synchronize_seconds\[0\]\[1\] must be"),
        ({"synchronize_seconds": NONE[:2]}, r"synchronize_seconds must have the shape"),
        ({"transition_seconds": MOVES[:1]}, r"= \[2, 2, 2\], got \[1, 2, 2\]"),
        ({"transition_seconds": MOVES * math.inf}, r"transition_seconds\[0\]\[0\]\[0\] must be"),
        ({"transition_seconds": MOVES * 4e307}, "the sum of transition_seconds must be a finite"),
        ({"names": ["a", "b"]}, "names must have one entry per layer"),
        ({"names": ["a", "b", "a"]}, "names must be unique"),
    ],
)
def test_wrong_chain_is_named(changes, message):
    if "the sum" in message:
        changes = {"transition_seconds": np.full((2, 2, 2), 1e308)}
    with pytest.raises(ValueError, match=message):
        chain(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": [(0, 1), (1, 0)]}, "edges must be without cycles, got layer_"),
        ({"edges": [(1, 1), (0, 1)]}, "edges must be without cycles, got layer_1 -> layer_1"),
        ({"edges": [(0, 1), (0, 1)]}, r"edges must be unique, got \(0, 1\) twice"),
        ({"edges": [(0, 1), (0, 3)]}, r"edges\[1\] must be from 0 to 2, got 3"),
        ({"edges": [(0, 1), (0, 1, 2)]}, r"edges\[1\] must be a pair"),
        ({"edges": [(0, 1), 2]}, r"edges\[1\] must be a list"),
        ({"move_seconds": -MOVES}, r"move_seconds\[0\]\[0\]\[0\] must be"),
    ],
)
def test_wrong_graph_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        graph(**changes)


def test_cycle_of_layers_is_named_in_order():
    with pytest.raises(
        ValueError, match=r"got (c -> a -> b -> c|a -> b -> c -> a|b -> c -> a -> b)"
    ):
        graph(
            edges=[(0, 1), (1, 2), (2, 0)],
            transition_seconds=np.zeros((3, 2, 2)),
            names=["a", "b", "c"],
        )
