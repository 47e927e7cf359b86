"""Connection of one rank to the rendezvous server at rank 0."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from tf_libra.coordination import rendezvous_frames as frames
from tf_libra.coordination.control_plane import LostRankError, waited_too_long
from tf_libra.coordination.launcher_variables import join_address
from tf_libra.coordination.rendezvous_address import resolve, start_remedy
from tf_libra.coordination.rendezvous_server import INVALID, STALL_SECONDS
from tf_libra.internal import formatting, log_utils
from tf_libra.launcher import SECRET_VARIABLE

# How long to wait for the greeting of a server that accepts connections.
_GREETING_SECONDS = 5.0
# How long to wait for the reason after a deadline.
_REASON_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.02, 1.0


class NotFoundError(Exception):
    """Error of an address at which the server of this job does not answer; names the reason."""


class OtherServerError(NotFoundError):
    """Error of an address at which something else answers than the server of this job."""


@dataclass(frozen=True)
class JobId:
    """Identity of a job.

    Attributes:
        value: text that is equal on all ranks.
        source: variables that the text comes from.
    """

    value: str
    source: str


def describe_process() -> str:
    """Returns a description of this process for the errors of other ranks."""
    return f"process {os.getpid()} on {platform.node()}"


class RendezvousClient:
    """Connection to the server.

    Attributes:
        local_address: IP address of this host, as used to reach the server.
        server_address: IP address of the server.
    """

    def __init__(self, connection: socket.socket, codec: frames.FrameCodec, rank: int) -> None:
        """Uses a connection whose handshake is done; see `connect`."""
        self._connection, self._codec, self._rank = connection, codec, rank
        self._lock = threading.Lock()
        self._num_exchanges = 0
        self.local_address = str(connection.getsockname()[0]).partition("%")[0]
        self.server_address = str(connection.getpeername()[0]).partition("%")[0]

    def exchange(self, message: Any, timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank. All ranks call it, in the same order.

        Args:
            message: JSON value.
            timeout_seconds: how long to wait for the other ranks.

        Raises:
            ValueError: the ranks are inconsistent, such as two with one number.
            LostRankError: a rank did not come in time, or is gone.
        """
        with self._lock:
            number = self._num_exchanges
            self._num_exchanges += 1
            until = time.monotonic() + timeout_seconds
            try:
                self._send({"exchange": number, "message": message}, until)
                while (answer := self._receive(until)).get("exchange") != number:
                    _raise_error(answer)
                return list(answer["messages"])
            except TimeoutError:
                raise LostRankError(self._why_late(number, timeout_seconds)) from None
            except (OSError, EOFError, frames.FrameError) as error:
                raise LostRankError(
                    f"rank 0 has ended, or closed its connection, at the rendezvous ({error})"
                ) from error

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _why_late(self, number: int, timeout_seconds: float) -> str:
        """Lets the server end the exchange for all ranks, and returns the reason that it names."""
        until = time.monotonic() + _REASON_SECONDS
        try:
            self._send({"exchange": number, "late": timeout_seconds}, until)
            while "error" not in (answer := self._receive(until)):
                pass
            return str(answer["error"])
        except (OSError, EOFError, frames.FrameError):
            return waited_too_long(self._rank, timeout_seconds, "rank 0, which does not answer")

    def _send(self, message: Any, until: float) -> None:
        self._connection.settimeout(max(until - time.monotonic(), 0.001))
        self._connection.sendall(self._codec.encode(message))

    def _receive(self, until: float) -> dict[str, Any]:
        return _receive(self._connection, self._codec, until, frames.MAX_FRAME_BYTES)


def connect(
    address: str,
    ports: range,
    hello: dict[str, Any],
    job_id: JobId,
    secret: bytes,
    timeout_seconds: float,
) -> RendezvousClient:
    """Connects to the server, and waits for it to come.

    Args:
        address: host name or IP address of rank 0.
        ports: ports at which it may listen.
        hello: "rank", "size", "who" and "version" of this process.
        job_id: identity of the job.
        secret: secret of the job; b"" for none.
        timeout_seconds: how long to wait for rank 0.

    Raises:
        ValueError: the server rejects this process.
        LostRankError: the server does not answer in time, or has lost a rank.
    """
    started = time.monotonic()
    until = started + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    has_logged = False
    answered: NotFoundError | None = None
    while True:
        try:
            return find(address, ports, hello, job_id, secret, until)
        except NotFoundError as error:
            if isinstance(error, OtherServerError):
                answered = error  # says more than the last refusal, after that server has ended
            now = time.monotonic()
            left = until - now
            endpoint = join_address(address, ports)
            whom = f"rank 0 at {endpoint} ({answered or error})"
            if now - started >= STALL_SECONDS and not has_logged:
                waited = formatting.time(now - started)
                log_utils.logger(hello["rank"]).warning(
                    "rank %d has waited %s for %s", hello["rank"], waited, whom
                )
                has_logged = True
            if left <= 0.0:
                remedy = start_remedy(endpoint, resolve(address))
                raise LostRankError(
                    waited_too_long(hello["rank"], timeout_seconds, whom, remedy)
                ) from None
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE_SECONDS)


def find(
    address: str, ports: range, hello: dict[str, Any], job_id: JobId, secret: bytes, until: float
) -> RendezvousClient:
    """Connects to the server if it listens now; other errors are those of `connect`.

    Args:
        address: host name or IP address of rank 0.
        ports: ports at which it may listen.
        hello: "rank", "size", "who" and "version" of this process.
        job_id: identity of the job.
        secret: secret of the job; b"" for none.
        until: monotonic time of the deadline.

    Raises:
        NotFoundError: the server of this job does not listen there.
    """
    reason = NotFoundError("its name is unknown")
    for port in ports:
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotFoundError(f"{address!r}: {error}") from error
        for family, kind, protocol, _, endpoint in found:
            connection = socket.socket(family, kind, protocol)
            try:
                seconds = min(until - time.monotonic(), _GREETING_SECONDS)
                connection.settimeout(max(seconds, 0.001))
                connection.connect(endpoint)
                return _shake_hands(connection, hello, job_id, secret)
            except NotFoundError as error:
                reason = error
            except OSError as error:
                reason = NotFoundError(error.strerror or str(error))
            except BaseException:
                connection.close()
                raise
            connection.close()
    raise reason


def _shake_hands(
    connection: socket.socket, hello: dict[str, Any], job_id: JobId, secret: bytes
) -> RendezvousClient:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    plain = frames.FrameCodec()
    until = time.monotonic() + _GREETING_SECONDS
    try:
        greeting = _receive(connection, plain, until, frames.MAX_HANDSHAKE_BYTES)
    except (EOFError, frames.FrameError, TimeoutError) as error:
        raise OtherServerError("another program answers there") from error
    protocol = greeting.get("tf_libra")
    if greeting.get("job") != job_id.value and protocol is not None:
        differs = f"{job_id.source} must be the same on all ranks" if job_id.source else ""
        stranger = f"rank {hello['rank']} of another job ({hello['who']}); {differs}".rstrip("; ")
        with contextlib.suppress(OSError):
            connection.sendall(plain.encode({"stranger": stranger}))
        answers = f"rank 0 of another job answers there; {differs}".rstrip("; ")
        raise OtherServerError(answers)
    if protocol != frames.PROTOCOL:
        raise ValueError(
            f"rank 0 has another version of TF-Libra: its rendezvous protocol is {protocol!r}, and"
            f" that of rank {hello['rank']} is {frames.PROTOCOL}"
        )
    hello = {**hello, "nonce": secrets.token_hex(16)}
    transcript = {
        **{part: greeting[part] for part in ("tf_libra", "job", "nonce")},
        "hello": hello,
    }
    sent = {**hello, "proof": frames.proof(secret, "client", transcript)}
    # From here on, the server is the one of this job, which may be busy.
    until = time.monotonic() + 4 * _GREETING_SECONDS
    connection.settimeout(4 * _GREETING_SECONDS)
    try:
        connection.sendall(plain.encode(sent))
        answer = _receive(connection, plain, until, frames.MAX_HANDSHAKE_BYTES)
    except (EOFError, frames.FrameError) as error:
        raise NotFoundError("rank 0 has closed the connection") from error
    _raise_error(answer)
    if not frames.is_proof(answer.get("proof"), frames.proof(secret, "server", transcript)):
        raise ValueError(
            f"the process that answers as rank 0 has another secret than rank {hello['rank']}: set"
            f" {SECRET_VARIABLE} alike on all ranks"
        )
    codec = frames.FrameCodec("client", frames.session_key(secret, transcript))
    return RendezvousClient(connection, codec, hello["rank"])


def _raise_error(answer: dict[str, Any]) -> None:
    if "error" in answer:
        kind = ValueError if answer.get("kind") == INVALID else LostRankError
        raise kind(str(answer["error"]))


def _receive(
    connection: socket.socket, codec: frames.FrameCodec, until: float, limit: int
) -> dict[str, Any]:
    (length,) = frames.LENGTH.unpack(_read(connection, frames.LENGTH.size, until))
    if length > limit:
        raise frames.FrameError(f"a frame has {length} bytes, more than {limit}")
    return codec.decode(_read(connection, length, until))


def _read(connection: socket.socket, count: int, until: float) -> bytes:
    parts = []
    while count:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("connection closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
