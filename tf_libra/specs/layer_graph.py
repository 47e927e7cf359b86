"""Layer graph of a step, which pipeline planners divide into stages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Natural, NonNegative, Positive
from tf_libra.specs.layer import Layer as Layer
from tf_libra.specs.layer import layers_from_columns


@dataclass(frozen=True)
class LayerGraph(Document):
    """Layers of a step in the order of forward computation, each feeding the next (SPP, III-A).

    Attributes:
      layers: L of them, at least one.
      activation_bytes: d, bytes of one microbatch from layer i to layer i + 1, and of the gradients
        back; one entry less than layers.
      input_shares: ascending shares of a microbatch with measured computation (SPP, footnote 2),
        the last of them 1; empty if time is proportional to the input's size.
      input_bytes: bytes of a microbatch's examples, which other ranks may pass; 0 if unknown.
      output_bytes: bytes of its results, which other ranks may return; 0 if unknown.
      update_broadcasts: number of rounds in which ranks exchange values during the update, such as
        norms of gradients, if layers are on several ranks.

    Raises:
      ValueError: no layer, two layers of one name, or a wrong length or number.
    """

    layers: tuple[Layer, ...]
    activation_bytes: tuple[NonNegative, ...]
    input_shares: tuple[Positive, ...] = ()
    input_bytes: NonNegative = 0.0
    output_bytes: NonNegative = 0.0
    update_broadcasts: Natural = 0

    FORMAT: ClassVar = "tf-libra layers"
    INDENT: ClassVar = 1
    SPARSE: ClassVar = ("input_shares", "input_bytes", "output_bytes", "update_broadcasts")

    def _validate(self) -> None:
        layers, shares = self.layers, self.input_shares
        if not layers:
            raise ValueError("layers must hold at least one layer, got none")
        seen: set[str] = set()
        for layer in layers:
            if layer.name in seen:
                raise ValueError(f"names must be unique, got {layer.name!r} twice")
            seen.add(layer.name)
        if len(self.activation_bytes) != len(layers) - 1:
            raise ValueError(
                "activation_bytes must have one entry between every two of "
                f"{len(layers)} layers: {len(layers) - 1}, got {len(self.activation_bytes)}"
            )
        if shares and (list(shares) != sorted(set(shares)) or shares[-1] != 1):
            raise ValueError(f"input_shares must ascend and end with 1, got {shares}")
        for layer in layers:
            for name in ("forward_seconds_by_share", "backward_seconds_by_share"):
                seconds = getattr(layer, name)
                if len(seconds) != len(shares):
                    raise ValueError(
                        f"{name} of layer {layer.name!r} must have one entry per input share: "
                        f"{len(shares)}, got {len(seconds)}"
                    )
                whole = getattr(layer, name.removesuffix("_by_share"))
                if seconds and seconds[-1] != whole:
                    raise ValueError(
                        f"{name} of layer {layer.name!r} must end with the time of the whole "
                        f"microbatch, {whole}, got {seconds[-1]}"
                    )
        sums = ("forward_seconds", "backward_seconds", "parameter_bytes")
        for name in (*sums, "update_seconds", "deferred_seconds"):
            validation.real(f"the sum of {name}", sum(getattr(layer, name) for layer in layers))

    def with_speed(self, factor: float) -> "LayerGraph":
        """Return the layers with all seconds multiplied by a factor."""

        def scaled(layer: Layer) -> Layer:
            forward, backward = layer.forward_seconds_by_share, layer.backward_seconds_by_share
            return replace(
                layer,
                forward_seconds=factor * layer.forward_seconds,
                backward_seconds=factor * layer.backward_seconds,
                forward_seconds_by_share=tuple(factor * seconds for seconds in forward),
                backward_seconds_by_share=tuple(factor * seconds for seconds in backward),
                update_seconds=factor * layer.update_seconds,
                deferred_seconds=factor * layer.deferred_seconds,
            )

        return replace(self, layers=tuple(map(scaled, self.layers)))

    @classmethod
    def chain(
        cls,
        forward_seconds: ArrayLike,
        backward_seconds: ArrayLike,
        parameter_bytes: ArrayLike,
        activation_bytes: ArrayLike,
        names: Sequence[str] | None = None,
        *,
        input_shares: ArrayLike = (),
        update_seconds: ArrayLike | None = None,
        deferred_seconds: ArrayLike | None = None,
    ) -> "LayerGraph":
        """Build a graph of L sequential layers from columns.

        Args:
          forward_seconds: of one microbatch on one device, shape [L]; with `input_shares`, of each
            share of a microbatch, shape [L, G].
          backward_seconds: same as `forward_seconds`, for backward computation.
          parameter_bytes: shape [L].
          activation_bytes: from layer i to i + 1 of one microbatch, shape [L - 1]; gradients back
            have the same size.
          names: unique names; None: "layer_0" and so on.
          input_shares: shape [G], ascending, the last 1. Time is linear between two shares, and
            constant below the least share.
          update_seconds: shape [L]; None: zeros.
          deferred_seconds: shape [L]; None: zeros.

        Raises:
          ValueError: columns of different lengths, or a value that `Layer` rejects.
        """
        shares = validation.sequence("input_shares", input_shares)
        layers = layers_from_columns(
            forward_seconds,
            backward_seconds,
            parameter_bytes,
            names,
            shares,
            update_seconds,
            deferred_seconds,
        )
        activations = validation.sequence("activation_bytes", activation_bytes)
        return cls(layers, activations, tuple(shares))

    @classmethod
    def mean(cls, graphs: Sequence["LayerGraph"]) -> "LayerGraph":
        """Returns the mean of measurements of the same layers, with the names of the first.

        Shares that a measurement lacks are left out.
        """
        num_shares = min(max(len(graph.input_shares), 1) for graph in graphs)
        forward, backward = (
            np.mean([seconds[:, -num_shares:] for seconds in measured], axis=0)
            for measured in zip(*(graph.seconds_by_share() for graph in graphs), strict=True)
        )
        update = np.mean([graph.update_seconds for graph in graphs], axis=0)
        deferred = np.mean([graph.deferred_seconds for graph in graphs], axis=0)
        shares = graphs[0].input_shares[-num_shares:]
        return graphs[0].with_seconds(forward, backward, update, shares, deferred)

    def with_seconds(
        self,
        forward_seconds: NDArray[np.float64],
        backward_seconds: NDArray[np.float64],
        update_seconds: NDArray[np.float64],
        input_shares: Sequence[float],
        deferred_seconds: NDArray[np.float64] | None = None,
    ) -> "LayerGraph":
        """Returns the layers with other times, and the same names and bytes.

        Args:
          forward_seconds: by layer and input share, shape [L, G]; G is 1 without shares.
          backward_seconds: the same, for backward computation.
          update_seconds: shape [L].
          input_shares: the G shares; the whole microbatch alone counts as none.
          deferred_seconds: shape [L]; None: the same.
        """
        has_shares = len(input_shares) > 1
        made = type(self).chain(
            forward_seconds if has_shares else forward_seconds[:, 0],
            backward_seconds if has_shares else backward_seconds[:, 0],
            self.parameter_bytes,
            self.activation_bytes,
            self.names,
            input_shares=input_shares if has_shares else (),
            update_seconds=update_seconds,
            deferred_seconds=(
                self.deferred_seconds if deferred_seconds is None else deferred_seconds
            ),
        )
        return replace(
            made,
            input_bytes=self.input_bytes,
            output_bytes=self.output_bytes,
            update_broadcasts=self.update_broadcasts,
        )

    def with_batch(self, factor: float, num_replicas: int) -> "LayerGraph":
        """Returns the layers for a batch `factor` times as large, and for a replica's share of it.

        Computation is as in `seconds_of_shares`, activations, examples and results grow with
        the batch, updates stay.
        """
        shares = [1 / num_replicas, 1.0] if num_replicas > 1 else [1.0]
        seconds = self.seconds_of_shares([factor * share for share in shares])
        deferred = factor * self.deferred_seconds
        scaled = self.with_seconds(*seconds, self.update_seconds, shares, deferred)
        return replace(
            scaled,
            activation_bytes=tuple((factor * self.cut_bytes).tolist()),
            input_bytes=factor * self.input_bytes,
            output_bytes=factor * self.output_bytes,
        )

    def for_microbatches(self, count: int, num_replicas: int) -> "LayerGraph":
        """Returns the layers for one of `count` parts of the batch, as `with_batch` does.

        Several parts compute deferred gradients once. With one part, they belong to backward.
        """
        part = self.with_batch(1 / count, num_replicas)
        if count == 1:
            return part.without_deferred()
        seconds = (*part.seconds_by_share(), part.update_seconds, part.input_shares)
        return part.with_seconds(*seconds, self.deferred_seconds)

    def without_deferred(self) -> "LayerGraph":
        """Returns the layers with gradients that are not deferred, but part of backward."""
        forward, backward = self.seconds_by_share()
        shares = np.array(self.input_shares or (1.0,))
        backward = backward + self.deferred_seconds[:, None] * shares
        zeros = np.zeros(len(self.layers))
        return self.with_seconds(forward, backward, self.update_seconds, self.input_shares, zeros)

    def seconds_of_shares(
        self, shares: Sequence[float]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns forward and backward seconds for shares of the batch, each of shape [L, shares].

        Time is linear in the share, through the least measured share and the whole batch. A share
        takes at least its proportion of the whole, and a share above 1 at least the whole.
        """
        start = self.input_shares[0] if self.input_shares else 0.0

        def at_shares(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
            least, whole = (seconds[:, 0] if start else 0.0), seconds[:, -1]
            slope = (whole - least) / (1 - start) if start < 1 else whole
            columns = [
                np.maximum(whole + slope * (share - 1), min(share, 1.0) * whole) for share in shares
            ]
            return np.stack(columns, axis=1)

        forward, backward = self.seconds_by_share()
        return at_shares(forward), at_shares(backward)

    def seconds_by_share(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns forward and backward seconds by layer and input share, each of shape [L, G].

        G is 1 without shares.
        """
        forward, backward = (
            np.array(
                [
                    getattr(layer, f"{name}_by_share") or (getattr(layer, name),)
                    for layer in self.layers
                ]
            )
            for name in ("forward_seconds", "backward_seconds")
        )
        return forward, backward

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of forward computation."""
        return tuple(layer.name for layer in self.layers)

    @cached_property
    def forward_seconds(self) -> NDArray[np.float64]:
        """Forward seconds of one microbatch per layer, shape [L]."""
        return _column([layer.forward_seconds for layer in self.layers])

    @cached_property
    def backward_seconds(self) -> NDArray[np.float64]:
        """Backward seconds of one microbatch per layer, shape [L]."""
        return _column([layer.backward_seconds for layer in self.layers])

    @cached_property
    def parameter_bytes(self) -> NDArray[np.float64]:
        """Sizes of parameters per layer, shape [L]."""
        return _column([layer.parameter_bytes for layer in self.layers])

    @cached_property
    def update_seconds(self) -> NDArray[np.float64]:
        """Update seconds per layer, shape [L]."""
        return _column([layer.update_seconds for layer in self.layers])

    @cached_property
    def deferred_seconds(self) -> NDArray[np.float64]:
        """Seconds of deferred gradients per layer, shape [L]."""
        return _column([layer.deferred_seconds for layer in self.layers])

    @cached_property
    def cut_bytes(self) -> NDArray[np.float64]:
        """Bytes `activation_bytes` as an array, shape [L - 1]."""
        return _column(self.activation_bytes)

    def replica_seconds(self, num_replicas: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns forward and backward seconds per layer of a replica of a microbatch's share.

        A replica computes 1 / num_replicas of the examples (SPP, section III-B). That takes the
        same share of the time, or the measured time of the share (footnote 2).
        """
        if not self.input_shares:
            return self.forward_seconds / num_replicas, self.backward_seconds / num_replicas
        share = 1 / num_replicas
        return (
            _column(
                [
                    np.interp(share, self.input_shares, layer.forward_seconds_by_share)
                    for layer in self.layers
                ]
            ),
            _column(
                [
                    np.interp(share, self.input_shares, layer.backward_seconds_by_share)
                    for layer in self.layers
                ]
            ),
        )


def _column(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values, np.float64)
    array.flags.writeable = False
    return array
