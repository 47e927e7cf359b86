"""What the simulator says of a plan: the stages of LIBRA, section III-B."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """The time between the starts of two successive all-reduces; seconds since backward's start.

    Attributes:
      start_seconds: when it begins. Stage 0 begins with backward, stage k + 1 with group k.
      overlap_seconds: t_o, computation and communication at once.
      residual_compute_seconds: t_b, computation alone.
      residual_communication_seconds: t_c, communication without backward computation; updates may
        run beside it.
    """

    start_seconds: float
    overlap_seconds: float
    residual_compute_seconds: float
    residual_communication_seconds: float

    @property
    def seconds(self) -> float:
        """t_o + t_b + t_c."""
        return (
            self.overlap_seconds
            + self.residual_compute_seconds
            + self.residual_communication_seconds
        )

    @property
    def end_seconds(self) -> float:
        """When the next all-reduce starts, or everything ends."""
        return self.start_seconds + self.seconds


@dataclass(frozen=True)
class GroupSpan:
    """When a group's all-reduce runs; seconds since backward's start.

    Attributes:
      ready_seconds: when its last gradient is produced.
      start_seconds: when the all-reduce starts.
      end_seconds: when it ends.
    """

    ready_seconds: float
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Timeline:
    """What `simulate` says of a plan.

    Attributes:
      stages: one more than groups; stage 0 is the computation before group 0 is complete.
      groups: one span per group, in the plan's order.
      updates_end_seconds: when the optimizer's last update ends, where the profile has updates.
    """

    stages: tuple[Stage, ...]
    groups: tuple[GroupSpan, ...]
    updates_end_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """From the start of backward until all is all-reduced and updated.

        Where the profile has no updates, `backward_seconds`.
        """
        return max(self.backward_seconds, self.updates_end_seconds)

    @property
    def backward_seconds(self) -> float:
        """The sum over all stages (Eq. 7)."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def computation_end_seconds(self) -> float:
        """When backward computation ends."""
        return max(
            (
                stage.end_seconds - stage.residual_communication_seconds
                for stage in self.stages
                if stage.overlap_seconds > 0 or stage.residual_compute_seconds > 0
            ),
            default=0.0,
        )
