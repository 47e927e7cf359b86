"""Log directory read through TensorBoard's data provider."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensorboard.context import RequestContext
from tensorboard.data import provider

from tf_libra.reporting.records.record_types import PLUGIN_NAME
from tf_libra.reporting.tensorboard.log_source import Series

# TensorBoard's own plugin for graphs.
_GRAPHS = "graphs"


class DataProviderSource:
    """Source of one experiment, for one request."""

    def __init__(
        self, data: provider.DataProvider, context: RequestContext, experiment: str
    ) -> None:
        """Prepare the source; nothing is read yet.

        Args:
            data: data provider.
            context: request context of the data provider.
            experiment: id of the experiment.
        """
        self._data, self._context, self._experiment = data, context, experiment

    def records(self) -> Mapping[str, Mapping[str, Series]]:
        """Return all series of records, by run and tag."""
        return _series(self._data.list_tensors(self._context, **self._whose(PLUGIN_NAME)))

    def scalars(self) -> Mapping[str, Mapping[str, Series]]:
        """Return all series of scalars, by run and tag."""
        return _series(self._data.list_scalars(self._context, **self._whose(PLUGIN_NAME)))

    def documents(self, run: str, tag: str, count: int = 1) -> Sequence[tuple[float, str]]:
        """Return at most `count` records of a series; one that is no text is a `ValueError`."""
        found = self._data.read_tensors(
            self._context,
            **self._whose(PLUGIN_NAME),
            downsample=count,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=[tag]),
        )
        return [(one.wall_time, _document(one.numpy)) for one in found.get(run, {}).get(tag, ())]

    def points(
        self, run: str, tags: Sequence[str], count: int
    ) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Return at most `count` points (step, value) of each series of scalars."""
        found = self._data.read_scalars(
            self._context,
            **self._whose(PLUGIN_NAME),
            downsample=count,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=list(tags)),
        )
        return {
            tag: [(one.step, one.value) for one in points]
            for tag, points in found.get(run, {}).items()
        }

    def graph_written(self, run: str) -> float | None:
        """Return the time of a run's graph in the Graphs tab; None without one."""
        found = self._data.list_blob_sequences(self._context, **self._whose(_GRAPHS))
        times = [float(series.max_wall_time) for series in found.get(run, {}).values()]
        return max(times, default=None)

    def _whose(self, plugin: str) -> dict[str, str]:
        return {"experiment_id": self._experiment, "plugin_name": plugin}


def _series(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Series]]:
    return {
        run: {
            tag: Series(one.plugin_content, one.max_step, one.max_wall_time)
            for tag, one in tags.items()
        }
        for run, tags in listed.items()
    }


def _document(value: Any) -> str:
    """Return the text of a summary, whose content is not trusted."""
    item = value.item() if value.size == 1 else None
    if not isinstance(item, bytes):
        raise ValueError("a summary of this plugin holds one string, this one does not")
    return item.decode()
