"""Rendezvous server in the process of rank 0: gathers one message per rank, and answers with all.

It runs in a thread of its own, and holds one connection per rank. It knows which ranks are missing,
so every error names them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_libra.coordination import rendezvous_frames as frames
from tf_libra.coordination.control_plane import EngineError, waited_too_long
from tf_libra.coordination.launcher_variables import join_address
from tf_libra.coordination.rendezvous_address import start_remedy
from tf_libra.internal import formatting, log_utils
from tf_libra.launcher import SECRET_VARIABLE

LOST, INVALID = "lost", "invalid"
# After how long to log which ranks are missing.
STALL_SECONDS = 30.0
_HANDSHAKE_SECONDS = 20.0
# How long rank 0, whose process ends with this server, waits for ranks that do not know a failure.
GRACE_SECONDS = 3.0
# Characters of what a process of another job says of itself.
_MAX_STRANGER = 300
# Missing ranks that a message names.
_MAX_RANKS_SHOWN = 16


@dataclass
class _Peer:
    """Connection to one rank."""

    rank: int
    who: str
    codec: frames.FrameCodec
    writer: asyncio.StreamWriter

    def send(self, message: Any) -> None:
        self.writer.write(self.codec.encode(message))


@dataclass
class _State:
    """Exchanges and connections so far. The server's thread alone uses them."""

    peers: dict[int, _Peer] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    pending: dict[int, dict[int, Any]] = field(default_factory=dict)
    rejected: str = ""
    stranger: str = ""
    num_done: int = 0
    failure: dict[str, str] | None = None
    informed: set[int] = field(default_factory=set)
    is_rank_0_blocked: bool = True


class RendezvousServer:
    """Server of one job."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        size: int,
        job_id: str,
        version: str,
        secret: bytes,
        address: str,
        who: str,
    ) -> None:
        """Starts to serve.

        Args:
            listeners: listening sockets.
            size: number of ranks.
            job_id: identity of the job.
            version: version of TF-Libra, which every rank must have.
            secret: secret of the job; b"" for none.
            address: host name or IP address at which other ranks look for this server.
            who: description of this process, which is rank 0.
        """
        self._listeners, self._address, self._who = list(listeners), address, who
        self._size, self._job_id, self._version, self._secret = size, job_id, version, secret
        self._state = _State()
        self._is_closing = False
        host, self.port = self._listeners[0].getsockname()[:2]
        # An address at which this process reaches the server.
        self.own_host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="libra rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server, and all connections."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_HANDSHAKE_SECONDS)
        for listener in self._listeners:
            listener.close()
        if self._thread.is_alive():
            raise EngineError("the rendezvous server does not end")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for listener in self._listeners:
            serving = asyncio.start_server(self._serve, sock=listener, limit=1 << 20)
            self._loop.run_until_complete(serving)
        self._loop.run_forever()
        self._is_closing = True
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.sleep(0))
        for peer in self._state.peers.values():
            peer.writer.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: _Peer | None = None
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                peer = await self._greet(reader, writer)
            while peer is not None:
                frame = await _read(reader, frames.MAX_FRAME_BYTES)
                self._on_message(peer, peer.codec.decode(frame))
        except (OSError, EOFError, frames.FrameError, TimeoutError, KeyError, TypeError):
            pass  # what follows says that the connection is closed
        finally:
            if peer is not None:
                self._on_close(peer)
            writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Peer | None:
        """Returns the rank that has connected; None if the connection is rejected."""
        plain = frames.FrameCodec()
        nonce = secrets.token_hex(16)
        greeting = {"tf_libra": frames.PROTOCOL, "job": self._job_id, "nonce": nonce}
        writer.write(plain.encode(greeting))
        hello = plain.decode(await _read(reader, frames.MAX_HANDSHAKE_BYTES))
        if "stranger" in hello:
            self._state.stranger = str(hello["stranger"])[:_MAX_STRANGER]
            return None
        rank, who = int(hello["rank"]), str(hello["who"])
        parts = ("rank", "size", "who", "version", "nonce")
        transcript = {**greeting, "hello": {part: hello[part] for part in parts}}
        rejection = self._rejection(hello, frames.proof(self._secret, "client", transcript))
        if rejection is not None:
            writer.write(plain.encode(rejection))
            with contextlib.suppress(OSError):
                await writer.drain()
            self._on_informed(rank)
            return None
        writer.write(plain.encode({"proof": frames.proof(self._secret, "server", transcript)}))
        session = frames.session_key(self._secret, transcript)
        peer = _Peer(rank, who, frames.FrameCodec("server", session), writer)
        self._state.peers[rank] = peer
        return peer

    def _rejection(self, hello: dict[str, Any], expected: str) -> dict[str, str] | None:
        """Returns the answer to a process that cannot be a rank of the job; None if it can.

        Without a valid proof, a process cannot end the job of the others.
        """
        rank, who, state = hello["rank"], hello["who"], self._state
        if not frames.is_proof(hello["proof"], expected):
            state.rejected = f"{who[:_MAX_STRANGER]} as rank {rank}"
            reason = (
                "has another secret than rank 0"
                if self._secret and hello["proof"]
                else f"has {'no' if self._secret else 'a'} secret, and rank 0"
                f" {'has one' if self._secret else 'has none'}"
            )
            text = f"rank {rank} ({who}) {reason}: set {SECRET_VARIABLE} alike on all ranks"
            return {"error": text, "kind": INVALID}
        if state.failure is not None:  # rank 0 gets it in its exchange
            return None if rank == 0 and who == self._who else state.failure
        if hello["version"] != self._version:
            text = (
                f"rank {rank} ({who}) runs TF-Libra {hello['version']}, and rank 0 runs"
                f" {self._version}: install the same version on all hosts"
            )
        elif hello["size"] != self._size:
            other = f"{hello['size']} on rank {rank} ({who})"
            text = f"the world size is {self._size} on rank 0 and {other}"
        elif not 0 <= rank < self._size:
            text = f"rank must be from 0 to {self._size - 1}, got {rank} from {who}"
        elif rank in state.peers or rank in state.gone or (rank == 0 and who != self._who):
            known = state.gone | {0: self._who} | {r: peer.who for r, peer in state.peers.items()}
            other = known[rank]
            text = f"two processes are rank {rank}: {other}, and {who}"
        else:
            return None
        rejection = {"error": text, "kind": INVALID}
        if not state.num_done:  # later, the other ranks train already
            self._fail(INVALID, text)
        return rejection

    def _on_message(self, peer: _Peer, message: dict[str, Any]) -> None:
        state = self._state
        if state.failure is not None:
            return self._inform(peer)
        number = int(message["exchange"])
        if number not in state.pending and peer.rank not in state.gone:
            self._loop.call_later(STALL_SECONDS, self._warn_of_stall, number)
        pending = state.pending.setdefault(number, {})
        if "late" in message:
            self._fail(LOST, self._why_late(peer.rank, message["late"], pending), True)
            return
        pending[peer.rank] = message["message"]
        if state.gone:
            rank, who = next(iter(state.gone.items()))
            self._fail(LOST, _has_ended(rank, who))
        elif len(pending) == self._size:
            del state.pending[number]
            state.num_done += 1
            answer = {"exchange": number, "messages": [pending[r] for r in range(self._size)]}
            # Rank 0 may end this process as soon as it has its answer.
            for other in sorted(
                state.peers.values(), key=lambda waiting: waiting.rank, reverse=True
            ):
                other.send(answer)

    def _warn_of_stall(self, number: int) -> None:
        """Logs which ranks an exchange still waits for."""
        state = self._state
        if number in state.pending and state.failure is None:
            log_utils.logger(0).warning(
                "rank 0 has waited %s for %s",
                formatting.time(STALL_SECONDS),
                self._missing(state.pending[number]),
            )

    def _missing(self, pending: dict[int, Any]) -> str:
        """Returns the ranks that are missing in an exchange, and what came in their place."""
        missing = [other for other in range(self._size) if other not in pending]
        shown = formatting.listed(missing, _MAX_RANKS_SHOWN)
        whom = f"rank{'s' if len(missing) > 1 else ''} {shown} at the rendezvous"
        if self._state.rejected:
            whom += f" (it rejected {self._state.rejected}, which has another secret)"
        if self._state.stranger:
            whom += f" (it met {self._state.stranger})"
        return whom

    def _why_late(self, rank: int, seconds: float, pending: dict[int, Any]) -> str:
        whom = self._missing(pending)
        if self._state.num_done:
            return waited_too_long(rank, seconds, whom)
        endpoint = join_address(self._address, range(self.port, self.port + 1))
        hosts = [str(listener.getsockname()[0]).partition("%")[0] for listener in self._listeners]
        remedy = start_remedy(endpoint, hosts)
        if any(ipaddress.ip_address(host).is_unspecified for host in hosts):
            remedy += f"; the host of rank 0 has no address {self._address} itself"
        return waited_too_long(rank, seconds, whom, remedy)

    def _on_close(self, peer: _Peer) -> None:
        state = self._state
        if self._is_closing:  # rank 0 ends, not the other side of the connection
            return
        if state.peers.get(peer.rank) is peer:
            del state.peers[peer.rank]
            state.gone[peer.rank] = peer.who
            self._on_informed(peer.rank)
            if state.pending or not state.num_done:
                self._fail(LOST, _has_ended(peer.rank, peer.who))

    def _fail(self, kind: str, text: str, is_late: bool = False) -> None:
        """Fails all exchanges from now on; every rank gets the same reason, and rank 0 last."""
        if self._state.failure is None:
            self._state.failure = {"error": text, "kind": kind}
            self._loop.call_later(0.0 if is_late else GRACE_SECONDS, self._release_rank_0)
            for peer in self._state.peers.values():
                self._inform(peer)

    def _inform(self, peer: _Peer) -> None:
        if peer.rank > 0 or not self._state.is_rank_0_blocked:
            peer.send(self._state.failure)
            self._on_informed(peer.rank)

    def _on_informed(self, rank: int) -> None:
        state, others = self._state, set(range(1, self._size))
        state.informed |= {rank} & others if state.failure else set()
        if state.failure and state.informed.union(state.gone) >= others:
            self._loop.call_soon(self._release_rank_0)  # after what is about to be sent

    def _release_rank_0(self) -> None:
        if self._state.is_rank_0_blocked and 0 in self._state.peers:
            self._state.peers[0].send(self._state.failure)
        self._state.is_rank_0_blocked = False


def _has_ended(rank: int, who: str) -> str:
    return f"rank {rank} ({who}) has ended, or closed its connection, at the rendezvous"


async def _read(reader: asyncio.StreamReader, limit: int) -> bytes:
    (length,) = frames.LENGTH.unpack(await reader.readexactly(frames.LENGTH.size))
    if length > limit:
        raise frames.FrameError(f"a frame has {length} bytes, more than {limit}")
    return await reader.readexactly(length)
