"""The networks as they are kept: counts of the papers, and reading them back."""

import json
import subprocess
import sys

import pytest

from benchmarks import networks
from benchmarks.networks.network import from_json

# Tensors: Table III of ASC-WFBP's paper, where it names the network. Parameters: as published.
PUBLISHED = {
    "vgg16": (32, 138_357_544),
    "resnet152": (467, 60_192_808),
    "xception": (156, 22_855_952),
    "densenet201": (604, 20_013_928),
    "inceptionv4": (449, 42_679_816),
    "bert_base": (206, 110_106_428),
}


def test_every_network_is_checked():
    assert set(PUBLISHED) == set(networks.NAMES)


@pytest.mark.parametrize("name", networks.NAMES)
def test_has_as_many_tensors_and_parameters_as_published(name):
    network = networks.load(name)
    tensors, parameters = PUBLISHED[name]
    assert len(network.tensors) == tensors
    assert sum(tensor.num_bytes for tensor in network.tensors) == 4 * parameters


@pytest.mark.parametrize("name", networks.NAMES)
def test_backward_is_about_twice_forward(name):
    network = networks.load(name)
    assert 1.9 < network.backward_operations / network.forward_operations < 2.1
    on_cpu = float(network.profile_on_cpu().compute_after[0])
    assert 1.0 < on_cpu / network.cpu.forward_seconds < 4.0
    # The least times of the ops cannot add up to more than the fastest step.
    assert on_cpu + network.cpu.forward_seconds < network.cpu.fastest_step_seconds


def test_the_last_layer_comes_first():
    assert "predictions" in networks.load("vgg16").tensors[0].name
    assert "block1_conv1" in networks.load("vgg16").tensors[-1].name
    last = {tensor.name.partition("/")[0] for tensor in networks.load("bert_base").tensors[-3:]}
    assert last == {"words", "positions", "segments"}


def test_arithmetic_scales_with_batch_and_rate():
    network = networks.load("bert_base")
    small, other = network.profile_at(1e12, 8), network.profile_at(4e12, 64)
    assert other.compute_seconds == pytest.approx(2 * small.compute_seconds)
    assert small.compute_after[0] == pytest.approx(network.backward_operations * 8 / 1e12)
    assert network.forward_seconds_at(1e12, 8) == network.forward_operations * 8 / 1e12
    assert small.names == network.profile_on_cpu().names
    assert {tensor.dtype for tensor in small.tensors} == {"float32"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: networks.load("alexnet"), "name must be one of vgg16"),
        (lambda: networks.load("vgg16").profile_at(0, 1), "operations_per_second must be greater"),
        (lambda: networks.load("vgg16").profile_at(1e12, 0), "batch must be from 1"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("title"), "lacks the keys"),
        (lambda v: v["cpu"].pop("batch"), "cpu lacks the keys"),
        (lambda v: v["tensors"][0].pop(), r"tensors\[0\] must have 4 entries"),
        (lambda v: v["tensors"][0].__setitem__(1, 0), "num_bytes must be from 1"),
    ],
)
def test_bad_documents_are_named(change, words):
    tensors = [["a", 4, 1.0, 0.1]]
    cpu = dict.fromkeys(
        ("processor", "tensorflow", "batch", "steps", "forward_seconds", "fastest_step_seconds"), 1
    )
    value = {"format": "tf-libra network", "version": 1, "cpu": cpu, "tensors": tensors}
    value |= dict.fromkeys(("name", "title", "source", "sample", "forward_operations"), 1)
    assert from_json(json.dumps(value)).tensors[0].name == "a"
    change(value)
    with pytest.raises(ValueError, match=words):
        from_json(json.dumps(value))


def test_loading_imports_no_tensorflow():
    code = (
        "import sys, benchmarks.networks as z; z.load('vgg16'); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
