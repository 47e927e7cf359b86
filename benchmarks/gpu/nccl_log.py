"""Channels that NCCL used, read from its own log. Pure functions, standard library only.

With NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=TUNING, rank 0 of a communicator writes a line per
collective when it schedules it: its kind, bytes, algorithm, protocol and the range of channels, one
thread block each. Releases before 2.24 write the same without channels.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_LINE = re.compile(
    r"NCCL INFO (?P<kind>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) "
    r"proto (?P<protocol>\w+)"
    r"(?:.*?channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)


@dataclass(frozen=True)
class LoggedCollective:
    """A collective as NCCL scheduled it.

    Attributes:
      kind: "AllReduce", "Broadcast", ...
      num_bytes: of the whole collective.
      algorithm: "RING", "TREE", ...
      protocol: "SIMPLE", "LL" or "LL128".
      channels: how many it runs on; None where this release does not say.
    """

    kind: str
    num_bytes: int
    algorithm: str
    protocol: str
    channels: int | None


@dataclass(frozen=True)
class RequestedChannels:
    """An all-reduce as it was issued, with its requested `channels`; None lets NCCL choose."""

    num_bytes: int
    channels: int | None


def parse(text: str) -> tuple[LoggedCollective, ...]:
    """The collectives of a log, in the order they were scheduled; other lines are skipped."""
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        low, high = match["low"], match["high"]
        found.append(
            LoggedCollective(
                kind=match["kind"],
                num_bytes=int(match["bytes"]),
                algorithm=match["algorithm"].upper(),
                protocol=match["protocol"].upper(),
                channels=None if low is None else int(high) - int(low) + 1,
            )
        )
    return tuple(found)


def compare(
    requested: Sequence[RequestedChannels], logged: Sequence[LoggedCollective]
) -> dict[str, Any]:
    """Compares the requested channels with those used, by all-reduce in the order of issue.

    Only all-reduces of the requested sizes count: the log also holds barriers and broadcasts.

    Returns:
      {"proven": every all-reduce that requested channels used exactly these, "reason": why not
      if not, "rows": [{"num_bytes", "requested", "used", "algorithm", "protocol",
      "as_requested"}]}.
      "as_requested" is None if NCCL was to choose or its log does not say.
    """
    sizes = {collective.num_bytes for collective in requested}
    relevant = [
        collective
        for collective in logged
        if collective.kind == "AllReduce" and collective.num_bytes in sizes
    ]
    rows = []
    reason = ""
    if [collective.num_bytes for collective in relevant] != [
        collective.num_bytes for collective in requested
    ]:
        reason = (
            f"the log holds {len(relevant)} all-reduces of these sizes, not the {len(requested)} "
            "issued in their order"
        )
    for collective, used in zip(requested, relevant, strict=False):
        known = collective.channels is not None and used.channels is not None
        rows.append(
            {
                "num_bytes": collective.num_bytes,
                "requested": collective.channels,
                "used": used.channels,
                "algorithm": used.algorithm,
                "protocol": used.protocol,
                "as_requested": used.channels == collective.channels if known else None,
            }
        )
    wanted = [row for row in rows if row["requested"] is not None]
    if not reason and any(row["used"] is None for row in wanted):
        reason = "this release of NCCL does not log channels"
    off = [row for row in wanted if row["as_requested"] is False]
    if not reason and off:
        reason = (
            f"{len(off)} of {len(wanted)} used another number, the first "
            f"{off[0]['used']} instead of {off[0]['requested']} for {off[0]['num_bytes']} bytes"
        )
    if not reason and not wanted:
        reason = "no channels were requested"
    return {"proven": not reason, "reason": reason, "rows": rows}


def as_json(logged: Sequence[LoggedCollective]) -> list[dict[str, Any]]:
    """The collectives as plain values."""
    return [asdict(collective) for collective in logged]
