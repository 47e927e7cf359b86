import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import models


@pytest.mark.parametrize("name", models.MODELS)
def test_model_takes_its_inputs_and_trains_every_variable(name: str) -> None:
    model, inputs, labels, loss = models.build(name)
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(loss(labels, model(inputs, training=True)))
    gradients = tape.gradient(value, model.trainable_variables)
    assert np.isfinite(value)
    assert all(gradient is not None for gradient in gradients)


def test_cnn5m_is_the_network_that_results_are_compared_on() -> None:
    model, inputs, labels, _ = models.build("cnn5m")
    assert inputs.shape == (16, 32, 32, 3)
    assert labels.shape == (16,)
    convolutions = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Conv2D)]
    assert [convolution.filters for convolution in convolutions] == [
        32,
        32,
        64,
        64,
        128,
        128,
        256,
        256,
    ]
    assert all(
        convolution.kernel_size == (3, 3) and convolution.padding == "same"
        for convolution in convolutions
    )
    dense = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Dense)]
    assert [layer.units for layer in dense] == [2048, 1024, 10]
    assert model.count_params() == 5_379_882


def test_function_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build():\n    return 'built'\n")
    assert models.find(f"{file}:build")() == "built"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "cnn6m",
            "must be one of mlp, cnn5m, vgg, .*lookup, or file.py:function",
        ),
        ("absent.py:build", "'absent.py' is none"),
        (f"{__file__}:absent", "has no 'absent'"),
        (f"{Path(__file__).parent}:build", "must name a Python file"),
    ],
)
def test_invalid_model_is_rejected(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.find(model)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("1, 2, 3", r"must return \(keras_model, inputs, labels, loss\)"),
        ("1, 2, 3, print", "keras_model of .* must be a Keras model that has weights"),
        ("keras.Sequential([keras.layers.Dense(1)]), 2, 3, print", "that has weights"),
        ("*models.mlp()[:3], 'mse'", "loss of .* must be a function, got 'mse'"),
    ],
)
def test_functions_that_return_something_else(tmp_path: Path, returned: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"import keras\nfrom benchmarks import models\ndef build():\n    return {returned}\n"
    )
    with pytest.raises(ValueError, match=message):
        models.build(f"{file}:build")


def test_launching_process_needs_no_tensorflow() -> None:
    """Its import takes longer than an error for a wrong flag, and the workers import it again."""
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "from benchmarks import bursts, drift, machine, step_time, truth, wire\n"
        "print(machine.versions()['tensorflow'])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == tf.__version__
