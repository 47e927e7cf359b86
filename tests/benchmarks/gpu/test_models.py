from collections import Counter

import pytest
import torch

from benchmarks import networks
from benchmarks.gpu import models
from benchmarks.gpu.device import Cpu
from benchmarks.gpu.gradients import FlatGradients, backward_order


@pytest.mark.parametrize("name", models.MODELS)
def test_gradients_are_those_of_the_paper_networks(name: str) -> None:
    theirs = Counter(tensor.num_bytes for tensor in networks.load(name).tensors)
    assert Counter(size for _, size in models.tensor_bytes(name)) == theirs


@pytest.mark.parametrize("name", models.MODELS)
def test_every_parameter_gets_its_gradient_in_the_buffer(name: str) -> None:
    device = Cpu()
    make = {"rank": 0, "dry_run": True, "batch_factor": 1.0}
    task = models.make(name, device.torch_device, **make)
    twin = models.make(name, device.torch_device, **make)
    assert len(list(task.model.parameters())) == len(models.tensor_bytes(name))
    gradients = FlatGradients(task.model, backward_order(task.model, task.batch), device)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    torch.manual_seed(5)
    marks = gradients.step(task.model, task.batch, optimizer, marking=True)
    torch.manual_seed(5)
    twin.model(*twin.batch).backward()
    expected = dict(twin.model.named_parameters())
    begin = 0
    for tensor in gradients.names:
        part = gradients.flat[begin : begin + expected[tensor].numel()]
        torch.testing.assert_close(part, expected[tensor].grad.flatten())
        begin += part.numel()
    assert begin == gradients.flat.numel()
    seconds = [mark.since(marks.backward) for mark in marks.produced]
    assert seconds == sorted(seconds) and marks.updated.since(marks.start) >= seconds[-1]


def test_an_unknown_network_is_reported() -> None:
    with pytest.raises(ValueError, match=r"model.*vgg16"):
        models.make("lenet", torch.device("cpu"), rank=0, dry_run=True, batch_factor=1.0)
