"""Statistics of a background job."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BackgroundStats:
    """Run time and cost of a background job so far.

    Attributes:
        step: number of settled training steps since the job began.
        command: command line of the job.
        max_slowdown: limit on the mean slowdown of training steps, as a share.
        slowdown: measured mean slowdown of steps that overlap the job, as a share; None if unknown.
        share_of_steps: share of the settled steps that the job overlapped.
        num_pauses: number of pauses.
        seconds: seconds since the job began.
        num_steps: steps of the job itself; None if it does not count them.
    """

    step: int
    command: str
    max_slowdown: float
    slowdown: float | None
    share_of_steps: float
    num_pauses: int
    seconds: float
    num_steps: int | None = None
