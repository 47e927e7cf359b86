import json
import math

import numpy as np
import pytest

import tf_libra

FORWARD, BACKWARD = [1.0, 0.0, 2.0], [2.0, 0.0, 3.0]
PARAMETERS, ACTIVATIONS = [10, 0, 30], [5, 0]


def chain(**changed):
    columns = {
        "forward_seconds": FORWARD,
        "backward_seconds": BACKWARD,
        "parameter_bytes": PARAMETERS,
        "activation_bytes": ACTIVATIONS,
    }
    return tf_libra.LayerGraph.chain(**(columns | changed))


def test_columns_round_trip():
    layers = chain(forward_seconds=np.array(FORWARD), names=["a", "b", "c"])
    assert layers.names == ("a", "b", "c")
    np.testing.assert_array_equal(layers.forward_seconds, FORWARD)
    np.testing.assert_array_equal(layers.backward_seconds, BACKWARD)
    np.testing.assert_array_equal(layers.parameter_bytes, PARAMETERS)
    np.testing.assert_array_equal(layers.cut_bytes, ACTIVATIONS)
    assert chain().names == ("layer_0", "layer_1", "layer_2")


def test_single_layer_has_no_activation_bytes():
    layers = tf_libra.LayerGraph.chain([1.0], [2.0], [3], [])
    assert layers.activation_bytes == ()


def test_replicas_share_time_evenly():
    forward, backward = chain().replica_seconds(4)
    np.testing.assert_allclose(forward, np.array(FORWARD) / 4)
    np.testing.assert_allclose(backward, np.array(BACKWARD) / 4)


def test_replicas_use_measured_shares():
    layers = chain(
        forward_seconds=[[3, 4, 6], [0, 0, 0], [1, 1, 1]],
        backward_seconds=[[3, 4, 6], [0, 0, 0], [2, 3, 5]],
        input_shares=[0.25, 0.5, 1],
    )
    np.testing.assert_array_equal(layers.forward_seconds, [6, 0, 1])
    np.testing.assert_array_equal(layers.replica_seconds(1)[1], [6, 0, 5])
    np.testing.assert_array_equal(layers.replica_seconds(2)[1], [4, 0, 3])
    # Between two shares it is linear; below the least, it is that of the least.
    np.testing.assert_allclose(layers.replica_seconds(3)[0][0], 3 + (1 / 3 - 1 / 4) * 4)
    np.testing.assert_array_equal(layers.replica_seconds(100)[0], [3, 0, 1])
    assert tf_libra.LayerGraph.from_json(layers.to_json()) == layers


def test_deferred_gradients_are_computed_once_for_several_microbatches():
    layers = chain(deferred_seconds=[4.0, 0.0, 2.0], update_seconds=[1.0, 0.0, 1.0])
    assert tf_libra.LayerGraph.from_json(layers.to_json()) == layers
    part = layers.for_microbatches(4, 2)
    np.testing.assert_array_equal(part.deferred_seconds, [4, 0, 2])
    np.testing.assert_allclose(part.backward_seconds, np.array(BACKWARD) / 4)
    whole = layers.for_microbatches(1, 2)
    np.testing.assert_array_equal(whole.deferred_seconds, [0, 0, 0])
    np.testing.assert_array_equal(whole.backward_seconds, [6, 0, 5])
    np.testing.assert_allclose(whole.replica_seconds(2)[1], [3, 0, 2.5])
    np.testing.assert_array_equal(layers.with_batch(2, 1).deferred_seconds, [8, 0, 4])
    np.testing.assert_array_equal(layers.with_speed(0.5).deferred_seconds, [2, 0, 1])
    mean = tf_libra.LayerGraph.mean([layers, layers.with_speed(3.0)])
    np.testing.assert_array_equal(mean.deferred_seconds, [8, 0, 4])
    with pytest.raises(ValueError, match=r"^deferred_seconds "):
        chain(deferred_seconds=[1.0])


def test_json_round_trip_is_identical():
    layers = chain(forward_seconds=[1e-300, 0.1, 1 / 3])
    assert tf_libra.LayerGraph.from_json(layers.to_json()) == layers
    updated = chain(update_seconds=[0.5, 0, 1e-3])
    np.testing.assert_array_equal(updated.update_seconds, [0.5, 0, 1e-3])
    assert tf_libra.LayerGraph.from_json(updated.to_json()) == updated


def test_json_without_updates_equals_previous_version():
    """An earlier version knows no updates, and rejects unknown fields."""
    assert "update_seconds" not in chain().to_json()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"forward_seconds": [1, -1, 2]}, "layer 1: forward_seconds must be at least 0, got -1"),
        ({"backward_seconds": [1, 1, math.nan]}, "layer 2: backward_seconds must be a finite"),
        ({"parameter_bytes": [1, -2, 3]}, "layer 1: parameter_bytes must be at least 0"),
        ({"update_seconds": [1, -2, 3]}, "layer 1: update_seconds must be at least 0"),
        ({"update_seconds": [1, 2]}, "update_seconds must have one entry per layer.* 3, got 2"),
        ({"parameter_bytes": [1, 2]}, "parameter_bytes must have one entry per layer.* 3, got 2"),
        ({"backward_seconds": [1] * 4}, "backward_seconds must have one entry per layer.* got 4"),
        ({"activation_bytes": [1]}, "activation_bytes must have one entry between every two"),
        ({"activation_bytes": [1, 2, 3]}, "activation_bytes must .* 3 layers: 2, got 3"),
        ({"activation_bytes": [1, -2]}, r"activation_bytes\[1\] must be at least 0"),
        ({"activation_bytes": [1, math.inf]}, r"activation_bytes\[1\] must be a finite number"),
        ({"names": ["a", "a", "b"]}, "names must be unique, got 'a' twice"),
        ({"names": ["a", "b"]}, "names must have one entry per layer"),
        ({"forward_seconds": [1e308] * 3}, "the sum of forward_seconds must be a finite number"),
        ({"forward_seconds": 3.0}, "forward_seconds must be a list"),
        ({"input_shares": [0.5, 1]}, r"forward_seconds\[0\] must be a list"),
        (
            {
                "forward_seconds": [],
                "backward_seconds": [],
                "parameter_bytes": [],
                "activation_bytes": [],
            },
            "layers must hold at least one layer",
        ),
    ],
)
def test_wrong_column_is_rejected(changed, message):
    with pytest.raises(ValueError, match=message):
        chain(**changed)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([1, 0.5], "input_shares must ascend and end with 1"),
        ([0.25, 0.5], "input_shares must ascend and end with 1"),
        ([0, 1], r"input_shares\[0\] must be greater than 0"),
        ([0.1, 0.5, 1], r"forward_seconds\[0\] must have one entry per input share: 3, got 2"),
    ],
)
def test_wrong_shares_are_rejected(shares, message):
    rows = [[1, 2]] * 3
    with pytest.raises(ValueError, match=message):
        chain(forward_seconds=rows, backward_seconds=rows, input_shares=shares)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda v: v.update(version=2), "version of tf-libra layers must be 1, got 2"),
        (lambda v: v["layers"][1].update(forward_seconds="x"), r"layers\[1\]: forward_seconds"),
        (lambda v: v["layers"][0].pop("name"), r"layers\[0\] lacks the keys \['name'\]"),
        (lambda v: v.update(speed=1), "tf-libra layers has unknown keys"),
    ],
)
def test_wrong_json_is_rejected(edit, message):
    value = json.loads(chain().to_json())
    edit(value)
    with pytest.raises(ValueError, match=message):
        tf_libra.LayerGraph.from_json(json.dumps(value))
