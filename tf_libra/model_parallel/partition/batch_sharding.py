"""Division of the joint batch: which rank passes, and which replica computes, which examples."""

from dataclasses import dataclass

from tf_libra.model_parallel.partition.layout import Layout


@dataclass(frozen=True)
class ExampleRange:
    """Consecutive examples of the joint batch, half open."""

    start: int
    stop: int

    def __and__(self, other: "ExampleRange") -> "ExampleRange":
        start = max(self.start, other.start)
        return ExampleRange(start, max(start, min(self.stop, other.stop)))

    @property
    def size(self) -> int:
        """The number of examples."""
        return self.stop - self.start


@dataclass(frozen=True)
class BatchShards:
    """Shards of the joint batch: the batches of all ranks in order, cut into microbatches.

    Attributes:
        layout: the replicas of each stage.
        examples_per_rank: number of examples that each rank passes.

    Raises:
        ValueError: microbatches do not divide the joint batch, or replicas a microbatch.
    """

    layout: Layout
    examples_per_rank: int

    def __post_init__(self) -> None:
        layout = self.layout
        check_divisible(self.examples_per_rank, layout.num_ranks, layout.num_microbatches)
        for ranks in layout.replica_groups:
            if self.microbatch_size % len(ranks):
                raise ValueError(
                    f"the {len(ranks)} replicas of a stage must divide a microbatch, got"
                    f" {self.microbatch_size} examples"
                )

    @property
    def microbatch_size(self) -> int:
        """The number of examples of a microbatch."""
        return self.examples_per_rank * self.layout.num_ranks // self.layout.num_microbatches

    def examples_per_replica(self, stage: int) -> int:
        """Returns the number of examples of a microbatch that a replica of a stage computes."""
        return self.microbatch_size // len(self.layout.ranks[stage])

    def passed_range(self, rank: int) -> ExampleRange:
        """Returns the examples that a rank passes to the step."""
        return ExampleRange(rank * self.examples_per_rank, (rank + 1) * self.examples_per_rank)

    def computed_range(self, ranks: tuple[int, ...], rank: int, microbatch: int) -> ExampleRange:
        """Returns the examples of a microbatch that one of the ranks that share it computes."""
        size = self.microbatch_size // len(ranks)
        start = microbatch * self.microbatch_size + ranks.index(rank) * size
        return ExampleRange(start, start + size)


def check_divisible(examples_per_rank: int, num_ranks: int, num_microbatches: int) -> None:
    """Raises `ValueError` if microbatches do not divide the joint batch."""
    num_examples = examples_per_rank * num_ranks
    if num_examples == 0 or num_examples % num_microbatches:
        raise ValueError(
            f"num_microbatches must divide the joint batch of {num_ranks} ranks with"
            f" {examples_per_rank} examples each, got {num_microbatches}"
        )
