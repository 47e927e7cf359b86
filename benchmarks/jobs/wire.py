"""Measures how long moving a model's gradients takes: sockets and nothing else.

Every rank sends each other rank its share of the bytes and receives as much, twice over: as much as
an all-reduce moves, 2(N-1)/N of the gradients each way (LIBRA, Eq. 4). One thread, nothing is
summed, nothing is copied besides what the kernel copies.
"""

import json
import os
import select
import socket
import tempfile
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.jobs.job import WireJob as Job
from benchmarks.jobs.training import begin
from benchmarks.machine import congestion_control
from tf_libra.backends import engine, lanes_bootstrap
from tf_libra.coordination import horovod_job

WARM_UP_ROUNDS = 3
# As lanes do: neither starves while a peer has something to say.
_PIECE_BYTES = 1 << 18
_DEADLINE_SECONDS = 60.0


def run(job: Job) -> None:
    """Measures; rank 0 writes {"wall_seconds", "core_seconds": one per round, "settings"}."""
    trained = begin(job)
    with tempfile.TemporaryDirectory() as folder:
        peers = _connect(folder)
    each = 2 * trained.num_bytes // hvd.size()
    buffers = memoryview(bytearray(each)), [memoryview(bytearray(each)) for _ in peers]
    seconds = np.zeros((WARM_UP_ROUNDS + job.rounds, 2))
    for of_round in seconds:
        hvd.allreduce(tf.constant(0.0), name="barrier")
        wall, core = time.perf_counter(), time.thread_time()
        _exchange(peers, *buffers)
        of_round[:] = time.perf_counter() - wall, time.thread_time() - core
    everyone = hvd.allgather(tf.constant(seconds[None, WARM_UP_ROUNDS:]), name="seconds")
    slowest = everyone.numpy().max(axis=0)
    if hvd.rank() == 0:
        measured = {
            "wall_seconds": slowest[:, 0].tolist(),
            "core_seconds": slowest[:, 1].tolist(),
            "settings": {
                "num_bytes": trained.num_bytes,
                "sent_bytes": each * len(peers),
                "transport": "Unix sockets" if peers[0].family == socket.AF_UNIX else "TCP",
                "congestion_control": congestion_control(),
                "cores_per_worker": len(os.sched_getaffinity(0)),
            },
        }
        Path(job.output).write_text(json.dumps(measured))


def _connect(folder: str) -> list[socket.socket]:
    """A connection to each other rank, over what lanes would use."""
    host = lanes_bootstrap.listening_host(horovod_job.world())
    if host == engine.UNIX:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{folder}/socket")
    else:
        listener = socket.socket()
        listener.bind((host, 0))
    listener.listen()
    addresses = [
        rank["address"] for rank in horovod_job.exchange_json({"address": listener.getsockname()})
    ]
    peers = []
    for address in addresses[: hvd.rank()]:
        peer = socket.socket(listener.family)
        peer.connect(address if isinstance(address, str) else tuple(address))
        peers.append(peer)
    listener.settimeout(_DEADLINE_SECONDS)
    peers += [listener.accept()[0] for _ in addresses[hvd.rank() + 1 :]]
    # A folder goes only when no rank connects there any more.
    hvd.allreduce(tf.constant(0.0), name="connected")
    listener.close()
    for peer in peers:
        peer.setblocking(False)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _exchange(peers: list[socket.socket], outgoing: memoryview, incoming: list[memoryview]) -> None:
    """Sends `outgoing` to every peer and fills `incoming`; TimeoutError where nothing moves."""
    poll = select.poll()
    by_descriptor = {peer.fileno(): index for index, peer in enumerate(peers)}
    sent, received = [0] * len(peers), [0] * len(peers)
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN | select.POLLOUT)
    left = len(peers)
    while left:
        events = poll.poll(_DEADLINE_SECONDS * 1000)
        if not events:
            raise TimeoutError(f"nothing has moved for {_DEADLINE_SECONDS:g} s")
        for descriptor, event in events:
            i = by_descriptor[descriptor]
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                count = peers[i].recv_into(incoming[i][received[i] : received[i] + _PIECE_BYTES])
                if count == 0:
                    raise ConnectionError("a rank has closed its connection")
                received[i] += count
            if event & select.POLLOUT:
                sent[i] += peers[i].send(outgoing[sent[i] : sent[i] + _PIECE_BYTES])
            done = [received[i] == len(incoming[i]), sent[i] == len(outgoing)]
            if any(done):
                wanted = select.POLLIN * (not done[0]) | select.POLLOUT * (not done[1])
                poll.modify(descriptor, wanted) if wanted else poll.unregister(descriptor)
                left -= all(done)
