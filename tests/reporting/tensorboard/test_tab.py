"""Views of a plan in the Libra tab of a real TensorBoard in a real browser."""

import urllib.parse
from typing import Any

from selenium.webdriver import Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from tests.reporting.tensorboard.conftest import Trained
from tests.reporting.tensorboard.plugin_backend import RUN
from tf_libra.internal import formatting
from tf_libra.specs.plan import Plan
from tools import tensorboard_tab
from tools.tensorboard_tab import Tab, answer

ms = formatting.time


def test_plan_view_has_the_numbers_of_json_and_explain(tab: Tab, made: dict[str, Any]) -> None:
    plan = made["plan"]
    rows = tab.find("#groups tbody tr")
    assert len(rows) == len(plan.groups)
    assert tab.one("#backward").text == f"backward, predicted: {ms(plan.predicted_seconds)}"
    assert ms(plan.predicted_seconds) in made["explained"]
    for index, (row, group) in enumerate(zip(rows, plan.groups, strict=True)):
        cells = [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "td")]
        assert row.get_attribute("data-group") == str(index)
        assert cells[1].startswith(f"{group.stop - group.start} ")
        assert cells[3] == f"r = {group.num_threads}"
        row.click()
        tab.wait(lambda k=index: tab.one("#detail").get_attribute("data-group") == str(k))
        why = tab.one("#why").text
        explained = " ".join(made["explained"].split())
        for sentence in tab.texts("#why p:not(.note)"):
            assert sentence in explained
        for cost in tab.find("#why .cost"):
            assert cost.get_attribute("data-seconds") is not None or "not possible" in cost.text
        assert f"r = {2 * group.num_threads}" in why
        names = plan.tensor_names[group.start : group.stop]
        assert tab.texts("#tensors .one-line") == list(names)
    assert ("bottleneck" in tab.one("#groups").text) == (plan.predicted_seconds is not None)


def test_plan_view_has_all_facts(tab: Tab, made: dict[str, Any], address: str) -> None:
    plan_key = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    assert plan_key["run"] == RUN
    tab.wait(lambda: tab.one("#gain").get_attribute("data-pending") is None)
    facts = {fact: tab.one(f"#{fact}").text for fact in ("bottleneck", "threads", "model", "gain")}
    assert "Group" in facts["bottleneck"]
    assert facts["threads"].splitlines()[1].startswith("r = ")
    assert "%" in facts["model"]
    assert "%" in facts["gain"]


def test_measurements_are_above_predictions(tab: Tab, made: dict[str, Any], address: str) -> None:
    plan_key = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    raced = answer(address, f"plan?{urllib.parse.urlencode(plan_key)}")["race"]
    rows = tab.find("#race-table tbody tr")
    assert [row.get_attribute("data-fingerprint") for row in rows] == [
        entry["fingerprint"] for entry in raced
    ]
    assert raced[0]["fingerprint"] == made["plan"].fingerprint
    first = [cell.text for cell in rows[0].find_elements(By.CSS_SELECTOR, "td")]
    assert first[2] == ms(raced[0]["seconds"])
    assert first[4] == "active"
    # Each other plan has its ratio and interval in one row; none is shown as faster.
    for row, trial in zip(rows[1:], raced[1:], strict=True):
        cells = [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "td")]
        change, limits = (
            formatting.change(trial["ratio"] - 1),
            formatting.limits(trial["low"], trial["high"]),
        )
        assert cells[2:4] == [change, limits]
        assert (cells[4] == formatting.NO_DIFFERENCE) == trial["is_noise"]
        assert cells[4] != "faster"
    assert tab.one("#race").location["y"] < tab.one("#where").location["y"]


def test_group_is_selected_by_keyboard(tab: Tab) -> None:
    tab.find("#groups tbody tr")[-1].send_keys(Keys.ENTER)
    last = str(len(tab.find("#groups tbody tr")) - 1)
    tab.wait(lambda: tab.one("#detail").get_attribute("data-group") == last)


def selected(tab: Tab) -> set[str | None]:
    """Returns the groups that are marked in the timelines."""
    return {bar.get_attribute("data-group") for bar in tab.find("svg.lanes .bar.selected")}


def test_selected_group_is_shared_by_views_and_survives_a_reload(
    tab: Tab, made: dict[str, Any]
) -> None:
    last = str(len(made["plan"].groups) - 1)
    tab.find("#groups tbody tr")[-1].click()
    tab.wait(lambda: tab.one("#detail").get_attribute("data-group") == last)
    tab.view("timeline")
    tab.wait(lambda: selected(tab) == {last})
    if last != "0":
        tab.script(
            "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))",
            tab.one("svg.lanes .timeline[data-kind='predicted'] .bar[data-group='0']"),
        )
        tab.wait(lambda: tab.find("svg.lanes .bar.selected[data-group='0']"))
    tab.again()
    assert tab.one("main").get_attribute("data-ready") == "timeline"
    assert "tuned" in Select(tab.one("#version")).first_selected_option.text
    tab.wait(lambda: selected(tab) == {"0"})


def test_group_links_to_the_graphs_tab_and_back(tab: Tab, trained: Trained) -> None:
    # TensorBoard shows the last graph of a run, which is that of the user-provided plan.
    assert not tab.find("#in-graph")
    plan = Plan.from_json(trained.given["plan"])
    last = len(plan.groups) - 1
    tab.choose("#version", "user-provided")
    tab.find("#groups tbody tr")[-1].click()
    tab.wait(lambda: tab.one("#detail").get_attribute("data-group") == str(last))
    node = tab.one("#in-graph").text
    assert node == f"tf_libra/{plan.short_id}/group_{last}"
    tab.one("#in-graph").click()
    tab.wait(lambda: "#graphs" in tab.address)
    selected = (
        "return window.parent.document.querySelector('tf-graph-dashboard')?._selectedNode ?? ''"
    )
    tab.wait(lambda: tab.script(selected).endswith(node))
    # The user selects another node there.
    first = tab.script(selected).replace(node, f"tf_libra/{plan.short_id}/group_0")
    tab.script(
        "window.parent.document.querySelector('tf-graph-dashboard')"
        ".set('_selectedNode', arguments[0])",
        first,
    )
    tab.script("window.parent.location.hash = '#libra'")
    tab.wait(lambda: tab.one("#detail").get_attribute("data-group") == "0")
    assert tab.one("#groups tr[data-group='0']").get_attribute("aria-selected") == "true"


def test_user_provided_plan_is_shown(tab: Tab, trained: Trained) -> None:
    given = Plan.from_json(trained.given["plan"])
    tab.choose("#version", "user-provided")
    tab.wait(lambda: len(tab.find("#groups tbody tr")) == len(given.groups))
    assert not tab.find("#backward")  # nothing is predicted without measurements
    for view in tensorboard_tab.VIEWS[1:]:
        tab.one(f"#tab-{view}").click()
        tab.wait(lambda name=view: tab.one("main").get_attribute("data-ready") == name)


def test_numbers_have_the_format_of_the_text_report(tab: Tab) -> None:
    values = [0.0, 5.199e-8, 9.9996e-4, 9.995e-4, 0.0015, 1.23456, 12345.6, 1e-10, 0.03, 7.00049e-3]
    values += [10**-k * m for k in range(9) for m in (1, 1.2345, 3.14159, 9.9995, 6.0005)]
    shown = tab.driver.execute_async_script(
        "const done = arguments[1];"
        "import(new URL('data/plugin/libra/static/format.js', window.parent.location.href).href)"
        ".then((f) => done(arguments[0].map((x) => [f.time(x), f.bytes(x * 1e6), f.rate(x * 1e9),"
        " f.percent(x), f.signedPercent(-x), f.difference(x), f.difference(-x),"
        " f.limits(x, 20 * x + 1)])))",
        values,
    )
    assert shown == [
        [
            formatting.time(x),
            formatting.size(x * 1e6),
            formatting.rate(x * 1e9),
            formatting.percent(x),
            formatting.change(-x),
            formatting.difference(x),
            formatting.difference(-x),
            formatting.limits(x, 20 * x + 1),
        ]
        for x in values
    ]


def test_themes_follow_tensorboard(tab: Tab) -> None:
    colors = []
    for _ in range(2):
        tab.wait(lambda: tab.script("return document.documentElement.dataset.theme"))
        colors.append(
            (
                tab.script("return document.documentElement.dataset.theme"),
                tab.script("return getComputedStyle(document.body).backgroundColor"),
            )
        )
        tab.script("window.parent.document.body.classList.toggle('dark-mode')")
        tab.wait(
            lambda: tab.script("return document.documentElement.dataset.theme") != colors[-1][0]
        )
    assert {theme for theme, _ in colors} == {"light", "dark"}
    assert colors[0][1] != colors[1][1]


def test_each_rank_writes_its_own_run(trained: Trained, address: str) -> None:
    for rank in range(2):
        files = list((trained.logdir / "first" / f"rank_{rank}").glob("events*.v2"))
        assert len(files) == 2  # one per job
        assert all(file.stat().st_size > 1000 for file in files)
