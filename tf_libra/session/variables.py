"""The variables a step starts from must be the same everywhere, or training is wrong in silence."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_libra.backends.agreement import agree
from tf_libra.backends.engine import Engine
from tf_libra.tracing.variables import is_random_state

# Broadcast messages are at most 64 MiB.
_PIECE_BYTES = 32 << 20


def compared(graph: Any) -> list[tuple[str, Any]]:
    """The variables of a traced step that every rank must hold alike, with a name each.

    All numbers: weights, slots and step counters of optimizers, moving averages, learning rates.
    The states of random number generators differ between ranks for good reason, and may.

    Args:
        graph: of the traced step.

    Returns:
        Name and variable, in the order in which tracing met them, which is that of the program
        and so the same on every rank.
    """
    # The graph keeps its variables in a set, whose order differs from process to process.
    met = {id(handle): index for index, handle in enumerate(graph.external_captures)}
    in_order = sorted(graph.variables, key=lambda v: (met.get(id(v.handle), len(met)), v.name))
    chosen, taken = [], set()
    for variable in in_order:
        is_number = variable.dtype.is_floating or variable.dtype.is_integer
        if not is_number or is_random_state(variable):
            continue
        # Keras 3 calls many of its variables "kernel"; what it shows as path is unique.
        base = str(getattr(variable, "path", None) or variable.name.split(":")[0])
        name, copies = base, 0
        while name in taken:
            copies += 1
            name = f"{base}#{copies}"
        taken.add(name)
        chosen.append((name, variable))
    return chosen


def digests(variables: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """A digest of each variable's dtype, shape and bits, by name."""
    return {name: _digest(variable) for name, variable in variables}


def broadcast(engine: Engine, variables: Sequence[tuple[str, Any]]) -> None:
    """Copies rank 0's values to every other rank, over the lanes.

    Raises:
        ValueError: the ranks do not have the same variables.
        EngineError: a rank is gone.
    """
    kinds = {name: f"{v.dtype.name} {tuple(v.shape)}" for name, v in variables}
    agree(engine, {"name of variable": list(kinds), "variable": kinds})
    for _, variable in variables:
        value = np.asarray(variable.numpy())
        payload = value.tobytes()
        received = b"".join(
            engine.broadcast_bytes(payload[at : at + _PIECE_BYTES])
            for at in range(0, len(payload), _PIECE_BYTES)
        )
        if engine.rank != 0:
            variable.assign(np.frombuffer(received, value.dtype).reshape(value.shape))


def _digest(variable: Any) -> str:
    value = np.asarray(variable.numpy())
    digest = hashlib.blake2b(f"{value.dtype} {value.shape} ".encode(), digest_size=16)
    digest.update(value.tobytes())
    return digest.hexdigest()
