"""Opens a trace of `tf-libra timeline` in Catapult, the viewer that chrome://tracing was.

    pip download --no-deps tensorboard_plugin_profile==2.13.1
    python -m tools.open_trace TRACE.json tensorboard_plugin_profile-2.13.1-py3-none-any.whl

Prints what the viewer found: its warnings, and the events of every thread of every process. The
wheel is taken apart, not installed: TensorBoard would show one tab more.
"""

import functools
import http.server
import json
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

from tools import tensorboard_tab

_STATIC = "tensorboard_plugin_profile/static"
_IMPORT = """
const model = new tr.Model();
new tr.importer.Import(model).importTraces([arguments[0]]);
return {
  warnings: model.importWarnings.map((one) => one.message),
  processes: model.getAllProcesses().map((process) => [
    process.userFriendlyName,
    Object.values(process.threads).map((t) => [t.userFriendlyName, t.sliceGroup.slices.length]),
  ]),
};
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing of each request."""


def main(trace: Path, wheel: Path) -> int:
    """Returns 1 where the viewer has warnings."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [n for n in packed.namelist() if n.startswith(_STATIC)])
        handler = functools.partial(_Quiet, directory=f"{folder}/{_STATIC}")
        with (
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
            tensorboard_tab.browsing() as tab,
        ):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            tab.driver.get(f"http://127.0.0.1:{server.server_port}/trace_viewer_index.html")
            tab.wait(lambda: tab.script("return typeof tr !== 'undefined' && !!tr.importer"))
            found = tab.script(_IMPORT, trace.read_text())
            server.shutdown()
    print(f"warnings: {json.dumps(found['warnings'])}")
    for process, threads in found["processes"]:
        for thread, events in threads:
            print(f"{process}, {thread}: {events} events")
    return 1 if found["warnings"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
