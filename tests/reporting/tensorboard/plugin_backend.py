"""The plugin on a log directory, over TensorBoard's own data provider in this process."""

import json
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tests.reporting.tensorboard import examples
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.tensorboard.loader import LibraLoader

RECORD = examples.plan_record()

RUN = "first/rank_0"


class Backend:
    """Plugin on a log directory."""

    def __init__(self, logdir: Path) -> None:
        multiplexer = EventMultiplexer(tensor_size_guidance={"libra": 1000})
        multiplexer.AddRunsFromDirectory(str(logdir))
        multiplexer.Reload()
        data = MultiplexerDataProvider(multiplexer, str(logdir))
        self.plugin = LibraLoader().load(base_plugin.TBContext(data_provider=data))
        self._apps = self.plugin.get_plugin_apps()

    def get(self, route: str, **parameters: Any) -> tuple[int, Any]:
        """Returns status and answer of a route."""
        response = Client(self._apps[f"/{route}"]).get("/", query_string=parameters)
        return response.status_code, json.loads(response.data)

    def answer(self, route: str, **parameters: Any) -> Any:
        """Returns the answer of a successful request."""
        status, value = self.get(route, **parameters)
        assert status == 200, value
        return value

    def static(self, path: str, method: str = "GET") -> Any:
        """Returns the response of the route of static files."""
        return Client(self._apps["/static/*"]).open(f"/data/plugin/libra{path}", method=method)


def write_alone(logdir: Path, record: record_types.Record) -> None:
    writer = RecordWriter(logdir, 0)
    writer.record(record.step, record)
    writer.close()
