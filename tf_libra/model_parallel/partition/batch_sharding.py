"""Division of a batch's samples among the ranks that pass and the replicas that compute them."""

from dataclasses import dataclass

from tf_libra.model_parallel.partition.layout import Layout


@dataclass(frozen=True)
class Range:
    """Consecutive samples of the joint batch, half open."""

    start: int
    stop: int

    def __and__(self, other: "Range") -> "Range":
        start = max(self.start, other.start)
        return Range(start, max(start, min(self.stop, other.stop)))

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.stop - self.start


@dataclass(frozen=True)
class BatchShards:
    """The joint batch: all ranks' batches, one after the other, cut into microbatches.

    Attributes:
        layout: who computes what.
        samples_per_rank: how many samples each rank passes.

    Raises:
        ValueError: microbatches, or the replicas of a stage, do not divide the batch.
    """

    layout: Layout
    samples_per_rank: int

    def __post_init__(self) -> None:
        layout = self.layout
        check_divides(self.samples_per_rank, layout.num_ranks, layout.num_microbatches)
        for ranks in layout.teams:
            if self.microbatch_size % len(ranks):
                raise ValueError(
                    f"the {len(ranks)} replicas of a stage do not divide a microbatch of"
                    f" {self.microbatch_size} samples"
                )

    @property
    def microbatch_size(self) -> int:
        """Samples of a microbatch."""
        return self.samples_per_rank * self.layout.num_ranks // self.layout.num_microbatches

    def size_in(self, stage: int) -> int:
        """Returns the number of samples of a microbatch that each replica of a stage computes."""
        return self.microbatch_size // len(self.layout.ranks[stage])

    def passed(self, rank: int) -> Range:
        """The samples that a rank passes."""
        return Range(rank * self.samples_per_rank, (rank + 1) * self.samples_per_rank)

    def computed(self, ranks: tuple[int, ...], rank: int, microbatch: int) -> Range:
        """The samples of a microbatch that one of the ranks that share it computes."""
        size = self.microbatch_size // len(ranks)
        start = microbatch * self.microbatch_size + ranks.index(rank) * size
        return Range(start, start + size)


def check_divides(samples_per_rank: int, num_ranks: int, num_microbatches: int) -> None:
    """Raises `ValueError` where microbatches do not divide the joint batch."""
    samples = samples_per_rank * num_ranks
    if samples == 0 or samples % num_microbatches:
        raise ValueError(
            f"num_microbatches must divide the batch of all ranks, {num_ranks} times"
            f" {samples_per_rank} samples, got {num_microbatches}"
        )
