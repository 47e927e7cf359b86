"""Timelines and other charts of the Libra tab in a real browser."""

import urllib.parse
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from tf_libra.internal import formatting
from tools.tensorboard_tab import Tab, answer

ms = formatting.time


def domain(tab: Tab) -> tuple[float, float]:
    lanes = tab.one("svg.lanes")
    return float(lanes.get_attribute("data-from")), float(lanes.get_attribute("data-to"))


def test_timeline_zooms_moves_and_has_tooltips(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("timeline")
    tab.wait(lambda: tab.find("svg.lanes .bar"))
    kinds = [row.get_attribute("data-kind") for row in tab.find("svg.lanes .timeline")]
    assert kinds == ["measured", "predicted", "rank", "rank"]
    predicted = tab.texts("svg.lanes .timeline .backward")[1]
    assert predicted == f"backward {ms(made['plan'].predicted_seconds)}"
    whole = domain(tab)
    tab.one("button[aria-label='Zoom in']").click()
    tab.wait(lambda: domain(tab) != whole)
    near = domain(tab)
    assert near[1] - near[0] < whole[1] - whole[0]
    lanes = tab.one("svg.lanes")
    ActionChains(tab.driver).drag_and_drop_by_offset(lanes, -120, 0).perform()
    tab.wait(lambda: domain(tab) != near)
    moved = domain(tab)
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    tab.one("button[aria-label='Show everything']").click()
    tab.wait(lambda: domain(tab) == whole)
    wheel = (
        "return arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -400, clientX: 700,"
        " bubbles: true, cancelable: true, ctrlKey: arguments[1]}))"
    )
    assert tab.script(wheel, lanes, False)  # not handled, so the page scrolls
    assert not tab.script(wheel, lanes, True)
    tab.wait(lambda: domain(tab) != whole)
    lanes.send_keys(Keys.HOME)
    tab.wait(lambda: domain(tab) == whole)
    lanes.send_keys("+")
    tab.wait(lambda: domain(tab) != whole)
    ActionChains(tab.driver).double_click(lanes).perform()
    tab.wait(lambda: domain(tab) == whole)
    bar = tab.one("svg.lanes .timeline[data-kind='predicted'] .bar[data-group='0']")
    ActionChains(tab.driver).move_to_element(bar).perform()
    tab.wait(lambda: "Group 0" in tab.one(".tooltip").text)
    shown = tab.one(".tooltip").text
    assert f"r = {made['plan'].groups[0].num_threads}" in shown


def test_timeline_shows_one_step_of_all_ranks(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("timeline")
    tab.wait(lambda: tab.find("#ranks .timeline"))
    assert len(tab.find("#ranks .timeline[data-kind='rank']")) == 2
    plan_key = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    view = answer(
        urllib.parse.urljoin(tab.address, "/"), f"ranks?{urllib.parse.urlencode(plan_key)}"
    )
    assert [entry["rank"] for entry in view["ranks"]] == [0, 1]
    assert f"Step {view['step']}, 2 ranks" in tab.one("#skew").text
    for rank in view["ranks"]:
        assert rank["host"]
        for span in rank["spans"]:
            assert span["ready"] <= span["from"] <= span["exchange"] <= span["to"]


def test_two_timelines_are_compared(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("timeline")
    before = tab.one("#difference").text
    select = Select(tab.one("#timeline-1"))
    texts = [option.text for option in select.options]
    assert any("SynEASGD" in text for text in texts)
    assert any("plan of step" in text for text in texts)
    select.select_by_visible_text(next(text for text in texts if text.startswith("WFBP, r = 2")))
    tab.wait(lambda: tab.one("#difference").text != before)
    assert "WFBP, r = 2, predicted: " in tab.one("#difference").text
    lanes = tab.find("svg.lanes .timeline")
    groups = {
        find_element.get_attribute("data-group")
        for find_element in lanes[1].find_elements(By.CSS_SELECTOR, ".bar[data-group]")
    }
    assert len(groups) == len(made["plan"].tensor_names)


def test_gathers_and_the_next_forward_pass_follow_the_step(tab: Tab) -> None:
    tab.view("timeline")
    select = Select(tab.one("#timeline-1"))
    texts = [option.text for option in select.options]
    select.select_by_visible_text(next(text for text in texts if text.lower().startswith("dear")))
    chart = "svg.lanes .timeline[data-kind='predicted']"
    tab.wait(lambda: tab.find(f"{chart} .bar[data-gather='0']"))
    assert len(tab.find(f"{chart} .end")) == 2


def test_contention_draws_samples_curves_and_residuals(
    tab: Tab, made: dict[str, Any], address: str
) -> None:
    tab.view("contention")
    for index in range(4):
        assert tab.find(f"#contention-{index} .scatterlayer .trace")
    rows = tab.texts("#coefficients tbody tr")
    assert [" ".join(row.split()[:3]) for row in rows] == ["r = 1", "r = 2"]
    assert "sample" in tab.one("#fit").text


def test_strategies_are_compared_for_all_world_sizes(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("strategies")
    rows = tab.find("#strategies tbody tr")
    assert {row.get_attribute("data-strategy") for row in rows} == {
        "syneasgd", "wfbp", "horovod-fusion", "mg-wfbp", "asc-wfbp", "libra-m", "libra", "mg-cf",
        "aiacc", "dear",
    }  # fmt: skip
    assert tab.find("#strategies tr[data-strategy='syneasgd']")
    own = [row.text for row in rows if "this plan" in row.text]
    assert len(own) <= 1
    for text in own:
        assert ms(made["plan"].predicted_seconds) in text
    assert tab.find("#scale-plot .scatterlayer .trace")
    assert "2048" in tab.one("#scale-plot").text


def test_history_marks_the_plans(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("history")
    assert "step" in tab.one("#history-lead").text
    assert made["plan"].fingerprint[:12] in tab.one("#plans").text
    assert tab.find("#history-steps .annotation")
