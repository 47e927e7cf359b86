"""A scaling profile as a planner looks at it, under a limit on amplification."""

import numpy as np
from numpy.typing import NDArray

from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.limits import widened

Array = NDArray[np.float64]
# A layer or an edge, or several.
Places = int | NDArray[np.intp]


def amplification(
    counts: Array, transition: Array | float, own: tuple[Array, Array], alone: Array
) -> Array:
    """Returns g x (transition in + compute + synchronize) / compute on one device (DeepPool 4.2).

    Args:
      counts: devices g.
      transition: what comes in, in seconds.
      own: the layer's compute and synchronize seconds on g devices.
      alone: its compute seconds on one device.

    Returns:
      It, of the broadcast shape; 1 where a layer costs nothing at all, infinite where it costs
      nothing on one device alone.
    """
    used = counts * (transition + own[0] + own[1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.divide(used, alone)
    return np.where((used == 0) & (alone == 0), 1.0, ratio)


class Costs:
    """Seconds of layers and edges, infinite where the limit forbids them.

    Attributes:
      counts: the G numbers of devices.
      own: computation and synchronisation of each layer, shape [L + 2, G]; the last two are of the
        layers that stand for what is before several first layers and after several last ones.
    """

    def __init__(self, scaling: ScalingProfile, limit: float) -> None:
        """Prepares a profile.

        Args:
          scaling: the profile.
          limit: no layer's amplification may be larger; infinite: none is forbidden.
        """
        self.counts = np.array(scaling.device_counts, np.float64)
        nothing = np.zeros((2, len(self.counts)))
        self._compute = np.concatenate([scaling.compute_seconds, nothing])
        self._synchronize = np.concatenate([scaling.synchronize_seconds, nothing])
        self.own = self._compute + self._synchronize
        # Where a layer costs nothing on one device, nothing may come in.
        self._budget = np.full(self.own.shape, np.inf)
        if np.isfinite(limit):
            with np.errstate(over="ignore"):
                self._budget = widened(limit) * (self._compute[:, :1] / self.counts) - self.own
        self._transition = scaling.transition_seconds
        self._move = scaling.move_seconds
        self.can_move = scaling.move_seconds is not None
        targets = np.array([target for _, target in scaling.edges], np.intp)
        # Steps along an edge into a layer with no other, for all edges at once.
        self._steps = self._stepped(self._transition, targets)
        self._moved_steps = None if self._move is None else self._stepped(self._move, targets)

    def _stepped(self, edges: Array, targets: NDArray[np.intp]) -> Array:
        steps = edges + self.own[targets, None, :]
        steps[edges > self._budget[targets, None, :]] = np.inf
        return steps

    def edge(self, index: Places, moved: bool) -> Array:
        """Seconds along edges, [..., G, G], to the same devices or to others."""
        if not moved:
            return self._transition[index]
        assert self._move is not None
        return self._move[index]

    def step(self, index: Places, moved: bool) -> Array:
        """Seconds along edges and of their targets, where those take from nowhere else."""
        steps = self._moved_steps if moved else self._steps
        assert steps is not None
        return steps[index]

    def start(self, layer: Places) -> Array:
        """Seconds of layers into which nothing comes, [..., G]."""
        return np.where(self._budget[layer] >= 0, self.own[layer], np.inf)

    def budget(self, layer: Places) -> Array:
        """What may come into layers by transition, in seconds; negative: nothing keeps it.

        The shape, [..., 1, G], is that of any number of devices before.
        """
        return self._budget[layer][..., None, :]
