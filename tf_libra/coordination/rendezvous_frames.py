"""Frames between the rendezvous server and its clients: JSON, with a length and an optional MAC.

With a secret, server and client prove to each other that they know the secret, and every later
frame carries an HMAC over its direction and number. Contents are not encrypted.
"""

import hashlib
import hmac
import json
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_libra.launcher import SECRET_FILE_VARIABLE, SECRET_VARIABLE

PROTOCOL = 1
# Largest frame before and after the handshake.
MAX_HANDSHAKE_BYTES = 1 << 16
MAX_FRAME_BYTES = 1 << 26
LENGTH = struct.Struct(">I")
_MAC_BYTES = hashlib.sha256().digest_size
_NUMBER = struct.Struct(">Q")


class FrameError(Exception):
    """Error of bytes that are no frame of this protocol, or were changed on their way."""


def read_secret(env: Mapping[str, str] = os.environ) -> bytes:
    """Returns the job's secret; b"" if none is set.

    Raises:
        ValueError: the secret is empty, named twice, or in a file that others may read.
    """
    path = env.get(SECRET_FILE_VARIABLE)
    secret = env.get(SECRET_VARIABLE)
    if secret is not None and path is not None:
        raise ValueError(f"{SECRET_VARIABLE} and {SECRET_FILE_VARIABLE} are set: set one of them")
    if path is not None:
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
            secret = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{SECRET_FILE_VARIABLE} must name a readable text file, got {path!r} ({error})"
            ) from error
        if mode & 0o077:
            raise ValueError(
                f"{SECRET_FILE_VARIABLE} must name a file of mode 600, got {path!r} of mode"
                f" {mode:03o}"
            )
    if secret is None:
        return b""
    if not secret:
        raise ValueError(f"{SECRET_VARIABLE if path is None else path!r} must not be empty")
    return secret.encode()


def proof(secret: bytes, role: str, transcript: Mapping[str, Any]) -> str:
    """Returns the proof that one side of a handshake knows the secret; "" without a secret.

    Args:
        secret: the job's secret.
        role: "server" or "client".
        transcript: values that both sides know, among them a nonce of each.
    """
    if not secret:
        return ""
    message = f"tf_libra rendezvous {role} {json.dumps(transcript, sort_keys=True)}"
    return hmac.new(secret, message.encode(), "sha256").hexdigest()


def is_proof(received: Any, expected: str) -> bool:
    """Returns whether a proof is the expected one, in time that does not depend on its content."""
    return isinstance(received, str) and hmac.compare_digest(received.encode(), expected.encode())


class FrameCodec:
    """Encodes the frames of one direction, and decodes those of the other."""

    def __init__(self, role: str = "", session: str = "") -> None:
        """Starts a connection.

        Args:
            role: "server" or "client"; this side.
            session: key of both directions, known to both sides alone; "" for frames without MAC.
        """
        other = "client" if role == "server" else "server"
        self._keys = {"out": f"{role} {session}".encode(), "in": f"{other} {session}".encode()}
        self._has_mac = bool(session)
        self._counts = {"out": 0, "in": 0}

    def encode(self, message: Any) -> bytes:
        """Returns the bytes of a frame."""
        body = json.dumps(message).encode()
        mac = self._mac("out", body)
        return LENGTH.pack(len(mac) + len(body)) + mac + body

    def decode(self, frame: bytes) -> dict[str, Any]:
        """Returns the message of a frame, without its length.

        Raises:
            FrameError: the frame is no JSON object, or its MAC is wrong.
        """
        size = _MAC_BYTES if self._has_mac else 0
        mac, body = frame[:size], frame[size:]
        if not hmac.compare_digest(mac, self._mac("in", body)):
            raise FrameError("a frame has a wrong MAC")
        try:
            message = json.loads(body)
        except ValueError as error:
            raise FrameError(f"a frame is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise FrameError("a frame is not a JSON object")
        return message

    def _mac(self, direction: str, body: bytes) -> bytes:
        if not self._has_mac:
            return b""
        number = _NUMBER.pack(self._counts[direction])
        self._counts[direction] += 1
        return hmac.digest(self._keys[direction], number + body, "sha256")


def session_key(secret: bytes, transcript: Mapping[str, Any]) -> str:
    """Returns the key of a connection's frames; "" without a secret."""
    return proof(secret, "session", transcript)
