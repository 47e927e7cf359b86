"""What a background job gets of the time that training leaves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Got:
    """What a background job has got so far, and what it costs.

    Attributes:
        step: how many settled steps there were beside which it could run.
        command: as in a shell.
        max_slowdown: by how much steps may be longer for it, as a share, in the mean.
        slowdown: by how much steps beside it were longer so far, in the mean, as a share; None
            before it is known.
        share_of_steps: in how many of the settled steps it ran.
        num_pauses: how often it was paused.
        seconds: since it began.
        num_steps: how many of its own it has made; None where it does not count them.
    """

    step: int
    command: str
    max_slowdown: float
    slowdown: float | None
    share_of_steps: float
    num_pauses: int
    seconds: float
    num_steps: int | None = None
