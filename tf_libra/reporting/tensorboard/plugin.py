"""HTTP backend of the Libra tab: static files, and answers about a log directory.

`tf_libra.reporting.tensorboard.routes` has the answers. An invalid request or summary gives status
400 with the reason as JSON, a missing name status 404.
"""

import functools
import json
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly
from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.context import RequestContext
from tensorboard.data import provider
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from tf_libra.reporting.records.record_types import PLUGIN_NAME
from tf_libra.reporting.tensorboard import routes
from tf_libra.reporting.tensorboard.log_source import Series
from tf_libra.reporting.tensorboard.record_lookup import NotFoundError

_STATIC = Path(__file__).parent / "static"
_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


class LibraPlugin(base_plugin.TBPlugin):
    """TensorBoard plugin of the Libra tab."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        """Takes the data provider from TensorBoard's context."""
        super().__init__(context)
        self._data_provider = context.data_provider

    def get_plugin_apps(self) -> dict[str, Any]:
        """Returns the routes below /data/plugin/libra."""
        return {
            "/static/*": self._static,
            **{f"/{name}": functools.partial(self._answer, name) for name in routes.ROUTES},
        }

    def is_active(self) -> bool:
        """Returns True: without data the tab explains what to add to a script."""
        return True

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Returns the ES module that draws the tab."""
        return base_plugin.FrontendMetadata(es_module_path="/static/index.js", tab_name="Libra")

    def _answer(self, route: str, environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        if request.method != "GET":
            response = _problem(request, "only GET is supported", 405)
        else:
            try:
                source = DataProviderSource(
                    self._data_provider,
                    plugin_util.context(request.environ),
                    plugin_util.experiment_id(request.environ),
                )
                answer = routes.ROUTES[route].answer
                value = answer(
                    source, **routes.parse_arguments(answer, request.args.to_dict(flat=False))
                )
                response = http_util.Respond(request, json.dumps(value), "application/json")
            except ValueError as error:
                response = _problem(request, str(error), 400)
            except NotFoundError as error:
                response = _problem(request, str(error), 404)
            except errors.PublicError as error:
                response = _problem(request, str(error), error.http_code)
        return response(environ, start_response)

    def _static(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Serves a file of a fixed set; no part of the request becomes a path."""
        request = Request(environ)
        name = request.path.rpartition("/static/")[2]
        path = _static_files().get(name)
        if path is None:
            response = _problem(request, "no such file", 404)
        else:
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            expires = 86400 if path == _PLOTLY else 0
            response = http_util.Respond(request, path.read_bytes(), kind, expires=expires)
        return response(environ, start_response)


@functools.cache
def _static_files() -> Mapping[str, Path]:
    files = {path.name: path for path in _STATIC.iterdir() if path.is_file()}
    return files | {_PLOTLY.name: _PLOTLY}


def _problem(request: Request, message: str, code: int) -> Response:
    return http_util.Respond(request, {"error": message}, "application/json", code=code)


# TensorBoard's own plugin for graphs.
_GRAPHS = "graphs"


class DataProviderSource:
    """Source of one experiment, for one request."""

    def __init__(
        self, data: provider.DataProvider, context: RequestContext, experiment: str
    ) -> None:
        """Prepares the source; nothing is read yet.

        Args:
            data: data provider.
            context: request context of the data provider.
            experiment: id of the experiment.
        """
        self._data, self._context, self._experiment = data, context, experiment

    def records(self) -> Mapping[str, Mapping[str, Series]]:
        """Returns all series of records, by run and tag."""
        return _series(self._data.list_tensors(self._context, **self._whose(PLUGIN_NAME)))

    def scalars(self) -> Mapping[str, Mapping[str, Series]]:
        """Returns all series of scalars, by run and tag."""
        return _series(self._data.list_scalars(self._context, **self._whose(PLUGIN_NAME)))

    def documents(self, run: str, tag: str, count: int = 1) -> Sequence[tuple[float, str]]:
        """Returns at most `count` records of a series; another content is a `ValueError`."""
        found = self._data.read_tensors(
            self._context,
            **self._whose(PLUGIN_NAME),
            downsample=count,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=[tag]),
        )
        return [
            (tensor.wall_time, _document(tensor.numpy))
            for tensor in found.get(run, {}).get(tag, ())
        ]

    def points(
        self, run: str, tags: Sequence[str], count: int
    ) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Returns at most `count` points (step, value) of each series of scalars."""
        found = self._data.read_scalars(
            self._context,
            **self._whose(PLUGIN_NAME),
            downsample=count,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=list(tags)),
        )
        return {
            tag: [(point.step, point.value) for point in points]
            for tag, points in found.get(run, {}).items()
        }

    def graph_written(self, run: str) -> float | None:
        """Returns the time of a run's graph in the Graphs tab; None without one."""
        found = self._data.list_blob_sequences(self._context, **self._whose(_GRAPHS))
        times = [float(series.max_wall_time) for series in found.get(run, {}).values()]
        return max(times, default=None)

    def _whose(self, plugin: str) -> dict[str, str]:
        return {"experiment_id": self._experiment, "plugin_name": plugin}


def _series(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Series]]:
    return {
        run: {
            tag: Series(series.plugin_content, series.max_step, series.max_wall_time)
            for tag, series in tags.items()
        }
        for run, tags in listed.items()
    }


def _document(value: Any) -> str:
    """Returns the text of a summary, whose content is not trusted."""
    item = value.item() if value.size == 1 else None
    if not isinstance(item, bytes):
        raise ValueError("a summary of this plugin must hold one string")
    return item.decode()
