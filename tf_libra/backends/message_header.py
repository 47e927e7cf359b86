"""Headers of messages between all ranks, which show whether all scripts are at the same point."""

import json
from dataclasses import dataclass

from tf_libra.coordination import control_plane


@dataclass(frozen=True)
class MessageHeader:
    """Kind of a message between all ranks, and the sender's position in its script.

    Attributes:
        kind: the same on every rank.
        sync_point: position for errors; empty for the kind.
    """

    kind: str
    sync_point: str = ""

    def pack(self, body: bytes) -> bytes:
        """Returns a message that begins with this header."""
        return json.dumps([self.kind, self.sync_point]).encode() + b"\n" + body

    @classmethod
    def unpack(cls, message: bytes) -> "tuple[MessageHeader, bytes]":
        """Splits a message from `pack` into header and body."""
        head, _, body = message.partition(b"\n")
        return cls(*json.loads(head)), body

    def compare(self, rank: int, theirs: "MessageHeader", their_rank: int) -> None:
        """Raises `EngineError` if another rank is at another kind of message."""
        if theirs.kind != self.kind:
            mine_at, theirs_at = self.sync_point or self.kind, theirs.sync_point or theirs.kind
            text = (
                f"rank {rank} is at {mine_at}, and rank {their_rank} at {theirs_at}: every rank"
                " must do the same"
            )
            raise control_plane.elsewhere(mine_at, theirs_at, text)
