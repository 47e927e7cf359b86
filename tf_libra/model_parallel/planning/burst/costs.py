"""Costs of layers and edges under a limit on amplification."""

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.tolerance import widened
from tf_libra.specs.scaling_profile import ScalingProfile

Array = NDArray[np.float64]
# One index of a layer or an edge, or an array of indices.
Positions = int | NDArray[np.intp]


def amplification(
    counts: Array, transition: Array | float, own: tuple[Array, Array], alone: Array
) -> Array:
    """Return g x (transition in + compute + synchronize) / compute on one device (DeepPool 4.2).

    Args:
      counts: devices g.
      transition: seconds of incoming transitions.
      own: the layer's compute and synchronize seconds on g devices.
      alone: the layer's compute seconds on one device.

    Returns:
      The amplification, of the broadcast shape: 1 for a layer without any cost, infinite for a
      layer that costs nothing on one device only.
    """
    used = counts * (transition + own[0] + own[1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.divide(used, alone)
    return np.where((used == 0) & (alone == 0), 1.0, ratio)


class Costs:
    """Seconds of layers and edges, infinite if the limit forbids them.

    Attributes:
      counts: the G device counts.
      own: compute and synchronize seconds of each layer, shape [L + 2, G]; the last two layers join
        several first and several last layers.
    """

    def __init__(self, scaling: ScalingProfile, limit: float) -> None:
        """Prepare the costs of a profile.

        Args:
          scaling: profile of the layers.
          limit: largest amplification of a layer; infinite: no limit.
        """
        self.counts = np.array(scaling.device_counts, np.float64)
        nothing = np.zeros((2, len(self.counts)))
        self._compute = np.concatenate([scaling.compute_seconds, nothing])
        self._synchronize = np.concatenate([scaling.synchronize_seconds, nothing])
        self.own = self._compute + self._synchronize
        # A layer without cost on one device allows no incoming transition.
        self._budget = np.full(self.own.shape, np.inf)
        if np.isfinite(limit):
            with np.errstate(over="ignore"):
                self._budget = widened(limit) * (self._compute[:, :1] / self.counts) - self.own
        self._transition = scaling.transition_seconds
        self._move = scaling.move_seconds
        self.can_move = scaling.move_seconds is not None
        targets = np.array([target for _, target in scaling.edges], np.intp)
        # Steps along an edge into a layer without other inputs, for all edges together.
        self._steps = self._stepped(self._transition, targets)
        self._moved_steps = None if self._move is None else self._stepped(self._move, targets)

    def _stepped(self, edges: Array, targets: NDArray[np.intp]) -> Array:
        steps = edges + self.own[targets, None, :]
        steps[edges > self._budget[targets, None, :]] = np.inf
        return steps

    def edge(self, index: Positions, moved: bool) -> Array:
        """Return seconds along edges, [..., G, G], to the same devices or to others (`moved`)."""
        if not moved:
            return self._transition[index]
        assert self._move is not None
        return self._move[index]

    def step(self, index: Positions, moved: bool) -> Array:
        """Return seconds along edges and of their targets, which have no other input."""
        steps = self._moved_steps if moved else self._steps
        assert steps is not None
        return steps[index]

    def start(self, layer: Positions) -> Array:
        """Return seconds of layers without inputs, [..., G]."""
        return np.where(self._budget[layer] >= 0, self.own[layer], np.inf)

    def budget(self, layer: Positions) -> Array:
        """Return the budget of incoming transitions of layers, in seconds, shape [..., 1, G].

        A negative budget allows no plan. The device count of the predecessor does not matter.
        """
        return self._budget[layer][..., None, :]
