"""Stage times on LIBRA's chunks (section IV-A), as extra seconds beyond the computation done.

Backward computation is divided into Z chunks of w seconds. A stage that processes d chunks while
c bytes are all-reduced with r threads ends, before chunk Z, only if the all-reduce has ended by
then (Eq. 19): p(c, r) + a <= g(d·w, r). With Eqs. 8-11 its time is then

  h = d·w + (p(c, r) + a)·(1 - rate), where rate = alpha1 - alpha2·r = b / g(b, r).

So beyond the d·w of its computation, a stage costs an extra that d does not change; d only has to
be large enough. An all-reduce that waits for other ranks takes longer, but computation keeps its
speed meanwhile: waiting adds to the computation that it overlaps, not to the extra. All that the
dynamic programs store is the sum of these extras, T(..., z) - z·w, which never increases with z.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.internal import validation
from tf_libra.specs.backward_profile import BackwardProfile

# Z·w may fall short of the sum by rounding; a chunk's edge is as good as reached by then.
_ROUNDING = 1e-9
# Tables of this many chunks fit into memory and take less than a minute.
MOST_CHUNKS = 1 << 17
NumChunks = Annotated[int, partial(validation.integer, minimum=1, maximum=MOST_CHUNKS)]


class ChunkedCosts:
    """Extra seconds of stages on chunks, for every number of threads in R.

    Attributes:
      threads: R, shape [J].
      chunks: Z.
      first_chunk: for l = 0..L the first chunk edge z at which the first l tensors are produced,
        z·w >= n(l); shape [L + 1].
      startup_extra: a·(1 - rate), shape [J].
      byte_extra: the same for one byte's transmission, shape [J].
      fitting_bytes: most bytes whose all-reduce ends within d chunks of computation, -1 if none
        does; shape [J, Z + 1] for d = 0..Z.
    """

    def __init__(
        self, profile: BackwardProfile, cost: CostModel, threads: Sequence[int], chunks: int
    ) -> None:
        """Tabulate the costs; a rate that is not positive is a `ValueError`."""
        self.threads = np.array(threads)
        self.chunks = chunks
        total = float(profile.compute_after[0])
        self._chunk_seconds = total / chunks
        produced = total - profile.compute_after
        if total > 0:
            edges = np.ceil(produced / self._chunk_seconds * (1 - _ROUNDING)).astype(np.int64)
            self.first_chunk = np.minimum(edges, chunks)
        else:
            self.first_chunk = np.zeros(len(produced), np.int64)
        self._rate = cost.compute_rate(self.threads)
        self._startup = cost.startup_seconds
        self._byte = cost.overlapped_seconds(1, self.threads)
        self._waiting = cost.waiting_seconds
        self._alone_startup = cost.exclusive_constant_seconds
        self._alone_byte = cost.exclusive_seconds(1, self.threads)
        self.startup_extra = self._startup * (1 - self._rate)
        self.byte_extra = self._byte * (1 - self._rate)
        spans = np.arange(chunks + 1) * self._chunk_seconds * (1 + _ROUNDING)
        seconds = (spans - self._waiting) / self._rate[:, None] - self._startup
        with np.errstate(divide="ignore", invalid="ignore"):
            most = seconds / self._byte[:, None]
        most = np.where(self._byte[:, None] > 0, most, np.where(seconds >= 0, np.inf, -1.0))
        largest = float(profile.effective_before[-1])
        self.fitting_bytes = np.floor(np.clip(most, -1.0, largest)).astype(np.int64)

    def hidden_chunks(self, num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the fewest chunks that hide an all-reduce of these bytes, shape [J, n].

        Z + 1 if Z chunks do not.
        """
        return np.stack([np.searchsorted(fitting, num_bytes) for fitting in self.fitting_bytes])

    def hidden_extra(self, num_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns extra seconds of a hidden all-reduce of at least 1 byte; shape [J, n]."""
        return self.startup_extra[:, None] + self.byte_extra[:, None] * num_bytes

    def residual_extra(
        self, num_bytes: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns extra seconds of a stage that ends at Z with a residual after its d chunks.

        Computation overlaps the share f = g(d·w, r) / (p + a) of the all-reduce, the rest
        takes (q + a)·(1 - f) (Eqs. 10, 11). Beyond d·w, that is
        (q + a) + f·((p + a)·(1 - rate) - (q + a)), linear in d. Waiting adds to q + a, and to the
        computation that f is a share of.

        Returns:
          The extra for d = 0 and what each chunk adds to it, both of shape [J, n].
        """
        overlapped = self._startup + self._byte[:, None] * num_bytes
        alone = self.exclusive_all_reduce(num_bytes)
        rate = self._rate[:, None]
        gain = overlapped * (1 - rate) - alone
        per_chunk = np.divide(
            self._chunk_seconds * gain,
            self._waiting + rate * overlapped,
            out=np.zeros_like(gain),
            where=self._waiting + overlapped > 0,
        )
        return alone, per_chunk

    def hidden_and_alone(self, index: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Returns extra seconds of an all-reduce of at least 1 byte with one number of threads.

        Returns:
          (startup, seconds per byte) of a hidden all-reduce, then of an exclusive one.
        """
        hidden = float(self.startup_extra[index]), float(self.byte_extra[index])
        return hidden, (self._alone_startup, float(self._alone_byte[index]))

    def exclusive_all_reduce(self, num_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns q(c, r) + a, with waiting, 0 for 0 bytes; shape [J, n]."""
        seconds = self._alone_startup + self._alone_byte[:, None] * num_bytes
        return np.where(num_bytes > 0, seconds, 0.0)
