"""All gradients of a model in one flat buffer, in backward order, with all-reduces from hooks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.gpu.buckets import Bucket, Launcher
from benchmarks.gpu.communication import Communication
from benchmarks.gpu.device import Device, Mark, Transfer


@dataclass
class StepMarks:
    """Time marks of one step; valid once the device is synchronised.

    Attributes:
      start: before the forward pass.
      backward: before backward computation.
      produced: after each gradient, by its index in backward order; empty unless requested.
      computed: after the last gradient's computation.
      transfers: (index of the bucket, all-reduce), in the order of launch.
      reduced: when gradients were computed and all-reduced.
      updated: when the optimizer was done.
    """

    start: Mark
    backward: Mark = field(init=False)
    produced: list[Mark | None] = field(default_factory=list)
    computed: Mark = field(init=False)
    transfers: list[tuple[int, Transfer]] = field(default_factory=list)
    reduced: Mark = field(init=False)
    updated: Mark = field(init=False)


def backward_order(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> list[str]:
    """Names of the parameters in the order in which backward computation finishes them."""
    order: list[str] = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
        for name, parameter in model.named_parameters()
    ]
    model(*batch).backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad(set_to_none=True)
    missing = {name for name, _ in model.named_parameters()} - set(order)
    if missing:
        raise ValueError(f"{len(missing)} parameters get no gradient, such as {min(missing)!r}")
    return order


class FlatGradients:
    """Gradients of a model as views of one buffer.

    Attributes:
      names: of the parameters, in backward order.
      num_bytes: of their gradients.
      item_bytes: of one element.
    """

    def __init__(self, model: torch.nn.Module, order: Sequence[str], device: Device) -> None:
        parameters = dict(model.named_parameters())
        self.names = tuple(order)
        self._device = device
        ordered = [parameters[name] for name in order]
        self.item_bytes = ordered[0].element_size()
        self.num_bytes = tuple(p.numel() * p.element_size() for p in ordered)
        self.flat = torch.zeros(sum(p.numel() for p in ordered), device=device.torch_device)
        begin = 0
        for index, parameter in enumerate(ordered):
            parameter.grad = self.flat[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()
            parameter.register_post_accumulate_grad_hook(
                lambda _, index=index: self._produced(index)
            )
        self._marks: StepMarks | None = None
        self._marking = False
        self._launcher: Launcher | None = None
        self._buckets: tuple[Bucket, ...] = ()
        self._communication: Communication | None = None

    def step(
        self,
        model: torch.nn.Module,
        batch: tuple[torch.Tensor, ...],
        optimizer: torch.optim.Optimizer | None,
        *,
        buckets: tuple[Bucket, ...] = (),
        communication: Communication | None = None,
        after_backward: bool = False,
        marking: bool = False,
    ) -> StepMarks:
        """Queues one training step; without buckets gradients stay this rank's own.

        Raises:
          RuntimeError: a gradient was not produced, so that a bucket was never launched.
        """
        device = self._device
        self._marks = marks = StepMarks(start=device.mark())
        self._marking = marking
        marks.produced = [None] * len(self.names) if marking else []
        self._buckets, self._communication = buckets, communication
        self._launcher = Launcher(buckets, after_backward=after_backward) if buckets else None
        if communication is not None:
            communication.begin_step(buckets)
        self.flat.zero_()
        loss = model(*batch)
        if communication is not None:
            loss = loss / communication.num_workers
        marks.backward = device.mark()
        loss.backward()
        marks.computed = device.mark()
        if self._launcher is not None and not self._launcher.is_complete:
            raise RuntimeError("backward ended without all gradients")
        device.join()
        marks.reduced = device.mark()
        if optimizer is not None:
            optimizer.step()
        marks.updated = device.mark()
        self._launcher = None
        return marks

    def _produced(self, index: int) -> None:
        marks = self._marks
        if marks is None:
            return
        if self._marking:
            marks.produced[index] = self._device.mark()
        if self._launcher is None:
            return
        assert self._communication is not None
        for number in self._launcher.produced(index):
            bucket = self._buckets[number]
            part = self.flat[bucket.elements[0] : bucket.elements[1]]
            transfer = self._communication.all_reduce(part, bucket.num_threads, ready=False)
            marks.transfers.append((number, transfer))
