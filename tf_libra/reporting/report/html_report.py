"""HTML report: the Libra tab as one file without a server or a network."""

import base64
import html
import json
import re
from importlib import resources
from pathlib import Path

from tf_libra.reporting.report.logdir_source import Answers, describe_problem, runs_answer
from tf_libra.reporting.tensorboard.views.card_registry import CARDS

_TAB = resources.files("tf_libra.reporting.tensorboard") / "static"
_OWN = resources.files("tf_libra.reporting.report") / "static"
_IMPORT = re.compile(r"""(from\s+)['"]\./([a-z_]+\.js)['"]""")
# An inline module has no address to import, so an import map names the modules.
_PREFIX = "libra/"
_START = f"import {{render}} from '{_PREFIX}index.js'; render();"


def report_page(title: str, answers: Answers) -> str:
    """Returns HTML with the tab's scripts and styles, the chart library and all answers.

    Raises:
        ImportError: Plotly is not installed.
        ValueError: no plan to show.
    """
    runs = runs_answer(answers)
    if not any(runs[name] for name in ("plans", *(card.name for card in CARDS.values()))):
        reason = "; ".join(map(describe_problem, runs["problems"][:3])) or "none was recorded"
        raise ValueError(f"no plan to show: {reason}")
    import plotly

    charts = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    library = charts.read_text().replace("</script", "<\\/script")
    styles = (_TAB / "style.css").read_text() + (_OWN / "report.css").read_text()
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{html.escape(title)}</title>",
            '<link rel="icon" href="data:,">',  # otherwise browsers request one
            f"<style>{styles}</style>",
            f'<script type="application/json" id="answers">{_quoted(json.dumps(answers))}</script>',
            f'<script type="importmap">{json.dumps({"imports": _modules()})}</script>',
            f"<script>{library}</script>",
            f'</head><body><script type="module">{_START}</script></body></html>',
            "",
        ]
    )


def _quoted(document: str) -> str:
    """Escapes JSON so that no string can end the script element."""
    return document.replace("<", "\\u003c")


def _modules() -> dict[str, str]:
    """Returns the tab's modules as data URLs by name, with the report's own `api.js`."""
    modules = {}
    for file in sorted(_TAB.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".js"):
            source = (_OWN / "api.js" if file.name == "api.js" else file).read_text()
            named = _IMPORT.sub(rf"\1'{_PREFIX}\2'", source)
            content = base64.b64encode(named.encode()).decode()
            modules[_PREFIX + file.name] = f"data:text/javascript;charset=utf-8;base64,{content}"
    return modules
