"""Reader of event files written by `tf_libra.reporting.records.event_writer`.

Needs TensorBoard for the file format, but no TensorFlow, which takes seconds to import.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra.reporting.records.record_types import PLUGIN_NAME

PATTERN = "**/*tfevents*"
# Frame of an event: its length, and checksums of the length and of the content.
_FRAME_BYTES = 16
# SummaryMetadata.data_class of scalars.
_SCALAR = 1
_NEEDED = "reading a log directory needs TensorBoard: pip install tf-libra[tensorboard]"


@dataclass(frozen=True)
class Summary:
    """One value of a series.

    Attributes:
        tag: tag of the series.
        step: step of the value.
        written: time of the value, in seconds since the epoch.
        content: plugin data of the series.
        is_scalar: True for a series of scalars.
        tensor: the value, a `TensorProto`.
    """

    tag: str
    step: int
    written: float
    content: bytes
    is_scalar: bool
    tensor: Any

    @property
    def text(self) -> str:
        """Returns the record of the value; another content is a `ValueError`."""
        texts = self.tensor.string_val
        if len(texts) != 1:
            raise ValueError(f"{self.tag!r:.80} holds {len(texts)} strings instead of one record")
        return bytes(texts[0]).decode()

    @property
    def number(self) -> float:
        """Returns the scalar of the value."""
        from tensorboard.util import tensor_util

        return float(tensor_util.make_ndarray(self.tensor).item())


@dataclass(frozen=True)
class EventFile:
    """Content of an event file.

    Attributes:
        path: path of the file.
        summaries: summaries of this plugin in the order of writing, up to any damage.
        graph_written: time of its last graph; None without one.
        problem: reason for an incomplete read; empty for a complete one.
    """

    path: Path
    summaries: tuple[Summary, ...]
    graph_written: float | None
    problem: str


def read(path: Path) -> EventFile:
    """Reads a file as far as it was written.

    Raises:
        ImportError: TensorBoard is not installed.
    """
    summaries: list[Summary] = []
    graph_written, problem = None, ""
    series_metadata: dict[str, Any] = {}
    try:
        for event in _events(path):
            if event.HasField("graph_def"):
                graph_written = event.wall_time
            for value in event.summary.value:
                # The metadata of a series comes with its first value.
                metadata = series_metadata.setdefault(value.tag, value.metadata)
                if metadata.plugin_data.plugin_name != PLUGIN_NAME:
                    continue
                content, is_scalar = metadata.plugin_data.content, metadata.data_class == _SCALAR
                summaries.append(
                    Summary(
                        value.tag, event.step, event.wall_time, content, is_scalar, value.tensor
                    )
                )
    except ValueError as error:
        problem = str(error)
    return EventFile(path, tuple(summaries), graph_written, problem)


def _events(path: Path) -> Iterator[Any]:
    """Yields the events of a file; the writer may still append to it.

    Raises:
        ValueError: the file is damaged after the yielded events.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise ImportError(_NEEDED) from None
    reader = PyRecordReader_New(str(path))
    at = 0  # offset of the next event in bytes
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        except errors.DataLossError as error:
            if "truncated" in str(error):
                return
            what = f"damaged from byte {at} on" if at else "not an event file"
            raise ValueError(f"{what} (a checksum is wrong)") from None
        content = reader.record()
        at += len(content) + _FRAME_BYTES
        try:
            event = event_pb2.Event.FromString(content)
        except Exception as error:  # DecodeError moves between protobuf versions
            raise ValueError(f"not an event file ({error})") from None
        yield event
