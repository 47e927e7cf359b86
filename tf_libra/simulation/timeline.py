"""Simulated timeline of a data-parallel plan: the stages of LIBRA, section III-B."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TimelineStage:
    """Interval between two successive starts of all-reduces; seconds since backward's start.

    Attributes:
      start_seconds: begin. Stage 0 begins with backward, stage k + 1 with group k.
      overlap_seconds: t_o, concurrent computation and communication.
      residual_compute_seconds: t_b, computation without communication.
      residual_communication_seconds: t_c, communication without backward computation; updates may
        overlap it.
    """

    start_seconds: float
    overlap_seconds: float
    residual_compute_seconds: float
    residual_communication_seconds: float

    @property
    def seconds(self) -> float:
        """Length of the stage: t_o + t_b + t_c."""
        return (
            self.overlap_seconds
            + self.residual_compute_seconds
            + self.residual_communication_seconds
        )

    @property
    def end_seconds(self) -> float:
        """Start of the next all-reduce, or the end of the last stage."""
        return self.start_seconds + self.seconds


@dataclass(frozen=True)
class GroupSpan:
    """Simulated times of a group's all-reduce or gather; seconds since backward's start.

    Attributes:
      ready_seconds: production of the group's last gradient; of a gather, the step's end.
      start_seconds: its start.
      end_seconds: its end.
    """

    ready_seconds: float
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Timeline:
    """Simulated timeline of a plan.

    Attributes:
      stages: one more than groups; stage 0 is the computation before group 0 is complete.
      groups: one span per group, in the plan's order.
      updates_end_seconds: end of the optimizer's last update; 0 if the profile has no updates.
      gathers: one span per gather, in forward order; none if the plan all-reduces.
      forward: computation of the layers of each gather in the next forward pass, ready when the
        weights are gathered.
      forward_delay_seconds: seconds that gathers add to the next forward pass.
    """

    stages: tuple[TimelineStage, ...]
    groups: tuple[GroupSpan, ...]
    updates_end_seconds: float = 0.0
    gathers: tuple[GroupSpan, ...] = ()
    forward: tuple[GroupSpan, ...] = ()
    forward_delay_seconds: float = 0.0

    @property
    def boundary_seconds(self) -> float:
        """Seconds from the start of backward to the end of the step: of reductions and updates."""
        return max(self.backward_seconds, self.updates_end_seconds)

    @property
    def step_seconds(self) -> float:
        """Seconds from the start of backward to the end of all-reduces and updates.

        Equals `backward_seconds` if the profile has no updates and the plan no gathers. With
        gathers, their delay of the next forward pass is included: steps are compared by it.
        """
        return self.boundary_seconds + self.forward_delay_seconds

    @property
    def backward_seconds(self) -> float:
        """Sum over all stages (Eq. 7)."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def computation_end_seconds(self) -> float:
        """End of backward computation."""
        return max(
            (
                stage.end_seconds - stage.residual_communication_seconds
                for stage in self.stages
                if stage.overlap_seconds > 0 or stage.residual_compute_seconds > 0
            ),
            default=0.0,
        )
