"""Reads event files as `tf_libra.records.writer` writes them: the summaries of this plugin.

Needs TensorBoard, for the files' format. TensorFlow, which takes seconds to import, is not needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra.records.kinds import PLUGIN_NAME

PATTERN = "**/*tfevents*"
# What stands around an event: its length, and a checksum of that and of the content.
_FRAME_BYTES = 16
# SummaryMetadata.data_class of scalars.
_SCALAR = 1
_NEEDED = (
    "reading a log directory needs TensorBoard, which is not installed (pip install"
    " tf-libra[tensorboard])"
)


@dataclass(frozen=True)
class Summary:
    """One value of a series.

    Attributes:
        tag: the series.
        step: of the value.
        written: when, in seconds since the epoch.
        content: what the plugin data of the series say of it.
        is_scalar: whether the series is one of scalars.
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
        """The record that it holds; `ValueError` where it holds something else."""
        texts = self.tensor.string_val
        if len(texts) != 1:
            raise ValueError(f"{self.tag!r:.80} holds {len(texts)} strings instead of one record")
        return bytes(texts[0]).decode()

    @property
    def number(self) -> float:
        """The point that it holds."""
        from tensorboard.util import tensor_util

        return float(tensor_util.make_ndarray(self.tensor).item())


@dataclass(frozen=True)
class EventFile:
    """What was read of a file.

    Attributes:
        path: of the file.
        summaries: of this plugin, as they were written; where the file is damaged, those before.
        graph_written: when its last graph was; None without one.
        problem: why it could not be read to its end; empty where it could.
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
    of_series: dict[str, Any] = {}
    try:
        for event in _events(path):
            if event.HasField("graph_def"):
                graph_written = event.wall_time
            for value in event.summary.value:
                # Readers take the metadata of a series from its first value.
                metadata = of_series.setdefault(value.tag, value.metadata)
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
    """The events of a file, as far as it was written: the last may be just being written.

    Raises:
        ValueError: it is damaged; what comes before was returned.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    except ImportError:
        raise ImportError(_NEEDED) from None
    reader = PyRecordReader_New(str(path))
    at = 0  # where the next event begins, in bytes
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return
        except errors.DataLossError as error:
            if "truncated" in str(error):
                return
            what = f"damaged from byte {at} on" if at else "no event file"
            raise ValueError(f"{what} (a checksum is wrong)") from None
        content = reader.record()
        at += len(content) + _FRAME_BYTES
        try:
            event = event_pb2.Event.FromString(content)
        except Exception as error:  # DecodeError moves between protobuf versions
            raise ValueError(f"no event file ({error})") from None
        yield event
