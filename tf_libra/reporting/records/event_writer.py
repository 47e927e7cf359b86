"""Writer of records as TensorBoard summaries, one event file per rank.

Training needs only TensorFlow for it. A summary's plugin data names the plugin and the kind of
record, as JSON, so that a listing of summaries needs no values.
"""

import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_libra.internal.process_state import STATE
from tf_libra.reporting.records.record_types import (
    HISTORY_KIND,
    PLUGIN_NAME,
    Record,
    plugin_content,
)

# The required first record of an event file.
_FILE_VERSION = "brain.Event:2"
# Values of SummaryMetadata.data_class, which decides how TensorBoard samples a series.
_SCALAR, _TENSOR = 1, 2
_FLUSH_SECONDS = 2.0


@STATE.value()
def _file_numbers() -> Iterator[int]:
    """Returns the numbers of this process's event files, each used once."""
    return itertools.count()


def run_folder(logdir: Path, rank: int) -> Path:
    """Returns the folder of a rank's events, which is TensorBoard's run name."""
    return logdir / f"rank_{rank}"


class RecordWriter:
    """Event file of one rank.

    Records stay in memory until `flush`, or until a later write finds them older than two seconds,
    so most steps do not wait for the disk.
    """

    def __init__(self, logdir: Path, rank: int) -> None:
        """Creates the file.

        Raises:
            OSError: the file cannot be created.
        """
        folder = run_folder(logdir, rank)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}"
        # Files of the same second are ordered by name.
        path = folder / f"{name}.{os.getpid()}.{next(_file_numbers()):06d}.v2"
        path.touch()  # a failure is an OSError here, a TensorFlow error below
        self._file = tf.io.TFRecordWriter(str(path))
        self._tags: set[str] = set()
        self._flushed = 0.0
        self._write(tf.compat.v1.Event(wall_time=time.time(), file_version=_FILE_VERSION))
        self.flush()

    def record(self, step: int, record: Record) -> None:
        """Writes a record, as the value of its series at this step."""
        tensor = tf.make_tensor_proto(record.to_json(), tf.string)
        self._summary(step, {record.tag: tensor}, record.KIND, _TENSOR)

    def history(self, step: int, function: str, values: Mapping[str, float]) -> None:
        """Writes one point of each series of scalars, named as in `SCALAR_TAGS`."""
        tensors = {
            f"{function}/{name}": tf.make_tensor_proto(value, tf.float32)
            for name, value in values.items()
        }
        self._summary(step, tensors, HISTORY_KIND, _SCALAR)

    def graph(self, step: int, content: bytes) -> None:
        """Writes a serialized `GraphDef` for the Graphs tab, which shows a run's last one."""
        self._write(tf.compat.v1.Event(wall_time=time.time(), step=step, graph_def=content))

    def flush(self) -> None:
        """Makes all records visible to readers."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and close the file."""
        self._file.close()

    def _summary(self, step: int, tensors: Mapping[str, Any], kind: str, data_class: int) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), step=step)
        for tag, tensor in tensors.items():
            value = event.summary.value.add(tag=tag, tensor=tensor)
            if tag in self._tags:  # the metadata of a series comes with its first value
                continue
            self._tags.add(tag)
            value.metadata.plugin_data.plugin_name = PLUGIN_NAME
            value.metadata.plugin_data.content = plugin_content(kind)
            value.metadata.data_class = data_class
        self._write(event)

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()
