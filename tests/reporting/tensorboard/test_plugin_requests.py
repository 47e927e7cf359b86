"""Requests that the backend rejects, and its static files."""

from typing import Any

import pytest
from werkzeug.test import Client

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.plugin_backend import RECORD, RUN, Backend


@pytest.mark.parametrize(
    ("route", "parameters", "reason"),
    [
        ("plan", {}, "run must be given once, got 0"),
        ("plan", {"run": RUN}, "tag must be given once, got 0"),
        ("plan", {"run": [RUN, RUN], "tag": "x"}, "run must be given once, got 2"),
        ("plan", {"run": "x" * 70_000, "tag": "x"}, "run must have at most"),
        ("group", {"run": RUN, "tag": RECORD.tag}, "group must be given once"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "-1"}, "group must be an integer"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "99"}, "group must be from 0 to"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "9" * 90}, "group must be an integer"),
        ("group", {"run": RUN, "tag": RECORD.tag, "group": "٣"}, "group must be an integer"),
        ("timeline", {"run": RUN, "tag": RECORD.tag, "show": "all"}, "show must be one of"),
        (
            "timeline",
            {"run": RUN, "tag": RECORD.tag, "show": "wfbp", "threads": 3},
            "threads must be one of 1, 2, 4",
        ),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "workers": 3}, "workers must be one of"),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "workers": 4096}, "workers must be one of"),
        ("strategies", {"run": RUN, "tag": RECORD.tag, "strategy": "sgd"}, "strategy must be one"),
        ("plan", {"run": RUN, "tag": RECORD.tag.replace("plan", "step")}, "format must be"),
    ],
)
def test_bad_parameters_are_errors_with_a_reason(
    backend: Backend, route: str, parameters: dict[str, Any], reason: str
) -> None:
    status, value = backend.get(route, **parameters)
    assert status == 400
    assert reason in value["error"]


@pytest.mark.parametrize(
    "route", ["plan", "group", "timeline", "contention", "strategies", "steps"]
)
@pytest.mark.parametrize("name", [*examples.HOSTILE, "/etc/passwd", ".", "", "\0"])
def test_names_cannot_reach_other_files(backend: Backend, route: str, name: str) -> None:
    for parameters in ({"run": name, "tag": RECORD.tag}, {"run": RUN, "tag": name}):
        status, value = backend.get(route, **parameters, group=0, show="predicted")
        assert status == 404
        assert value == {"error": value["error"]}
        assert "no such plan" in value["error"]


def test_only_get_is_supported(backend: Backend) -> None:
    app = backend.plugin.get_plugin_apps()["/runs"]
    assert Client(app).post("/").status_code == 405


@pytest.mark.parametrize("name", ["index.js", "style.css", "plotly.min.js"])
def test_static_files(backend: Backend, name: str) -> None:
    response = backend.static(f"/static/{name}")
    assert response.status_code == 200
    assert response.mimetype in ("text/javascript", "application/javascript", "text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/../plugin.py",
        "/static/..%2fplugin.py",
        "/static//etc/passwd",
        "/static/%2e%2e/plugin.py",
        "/static/index.js%00",
        "/static/" + "x" * 10_000,
    ],
)
def test_other_static_files_are_not_found(backend: Backend, path: str) -> None:
    assert backend.static(path).status_code == 404
