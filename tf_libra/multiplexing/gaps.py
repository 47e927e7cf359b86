"""Where training waits for other ranks, and whether a background job is held to those gaps.

DeepPool's background lives on what bursts leave idle (section 2). A step in stages waits for other
ranks where it is known beforehand; beside what it computes a background costs more, and is let only
where that costs next to nothing.
"""

from tf_libra.multiplexing.pacing import Pacing

# A gap is worth the two signals that use it: to begin with, the step before has waited so long.
_SHORTEST_SECONDS = 1e-3
# Of a step, in gaps, from which on a background is held to them.
_WORTH_IT = 0.1
# How many cycles have to go well in gaps until it is tried beside all of a step.
_GOES_WELL = 4
# Steps beside which it was, until they say what that costs.
_KNOWN = 8


class Gaps:
    """How long each wait of a step takes.

    Attributes:
        share: of the last step, in waits that are worth using.
    """

    def __init__(self) -> None:
        """Knows of none."""
        self.share = 0.0
        self._last: dict[str, float] = {}
        self._waited = 0.0

    def is_long(self, what: str) -> bool:
        """Whether it is worth using, by how long the last wait for this was."""
        return self._last.get(what, 0.0) >= _SHORTEST_SECONDS

    def took(self, what: str, seconds: float) -> None:
        """A wait for `what` took so long."""
        self._last[what] = seconds
        if seconds >= _SHORTEST_SECONDS:
            self._waited += seconds

    def step_took(self, seconds: float) -> None:
        """The step with these waits took so long."""
        self.share = min(self._waited / seconds, 1.0) if seconds > 0 else 0.0
        self._waited = 0.0


class Manner:
    """Whether a background runs in gaps alone, or beside all that a step does.

    It begins in gaps where there are some. Where that goes well in all the steps that it may have,
    it is tried beside them; back to gaps, for good, where that costs too much to go on always.
    """

    def __init__(self, pacing: Pacing) -> None:
        """It runs beside steps, as long as no gap is known."""
        self._pacing = pacing
        self._in_gaps = False
        self._begins_in_gaps = True
        self._may_be_beside = True
        self._went_well = 0
        self._known = (0, 0.0)  # judged steps, and what they lost, when it was let beside

    @property
    def in_gaps(self) -> bool:
        """Whether it is held to gaps."""
        return self._in_gaps

    def planned(self, share_of_gaps: float) -> None:
        """A cycle's run was planned; steps wait for so much of their time."""
        if share_of_gaps < _WORTH_IT and not self._in_gaps:
            return
        if self._begins_in_gaps:
            self._begins_in_gaps, self._in_gaps = False, True
        elif self._in_gaps:
            self._went_well = self._went_well + 1 if self._pacing.duty == 1.0 else 0
            if self._may_be_beside and self._went_well >= _GOES_WELL:
                self._change(False)
        elif self._costs_too_much():
            self._may_be_beside = False
            self._change(True)

    def _costs_too_much(self) -> bool:
        count, lost = (
            now - then for now, then in zip(self._pacing.judged, self._known, strict=True)
        )
        return count >= _KNOWN and lost / count > self._pacing.always

    def _change(self, in_gaps: bool) -> None:
        self._in_gaps = in_gaps
        self._went_well = 0
        self._known = self._pacing.judged
        self._pacing.begins_anew()
