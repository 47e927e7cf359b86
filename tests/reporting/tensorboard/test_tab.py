"""The Libra tab of a real TensorBoard in a real browser, on runs of real workers."""

import itertools
import re
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import HOSTILE_RUN, Trained, write
from tf_libra import strategies
from tf_libra.internal import formatting
from tf_libra.model_parallel.reporting.burst_record import BurstRecord
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.specs.plan import Plan
from tools import tensorboard_tab
from tools.tensorboard_tab import Tab, answer

RUN = "first/rank_0"


ms = formatting.time


@pytest.fixture(scope="module")
def address(trained: Trained) -> Iterator[str]:
    with tensorboard_tab.serving(trained.logdir) as found:
        yield found


@pytest.fixture(scope="module")
def made(trained: Trained, address: str) -> dict[str, Any]:
    """Returns the plan that the job has tuned, its listing, and its explanation."""
    explained = trained.made
    plan = Plan.from_json(explained["plan"])
    assert explained["fitted"], explained["explain"]
    [heading] = [
        one for one in answer(address, "runs")["plans"] if one["fingerprint"] == plan.fingerprint
    ]
    return {"plan": plan, "explained": explained["explain"], "heading": heading}


@pytest.fixture
def tab(browser: Tab, address: str, made: dict[str, Any]) -> Iterator[Tab]:
    """Opens the tab at the tuned plan; the browser may log no errors."""
    browser.open(address)
    browser.choose("#version", "tuned")
    yield browser
    assert browser.trouble() == []


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
    place = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    assert place["run"] == RUN
    tab.wait(lambda: tab.one("#gain").get_attribute("data-pending") is None)
    facts = {one: tab.one(f"#{one}").text for one in ("bottleneck", "threads", "model", "gain")}
    assert "Group" in facts["bottleneck"]
    assert facts["threads"].splitlines()[1].startswith("r = ")
    assert "%" in facts["model"]
    assert "%" in facts["gain"]


def test_measurements_are_above_predictions(tab: Tab, made: dict[str, Any], address: str) -> None:
    place = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    raced = answer(address, f"plan?{urllib.parse.urlencode(place)}")["race"]
    rows = tab.find("#race-table tbody tr")
    assert [row.get_attribute("data-fingerprint") for row in rows] == [
        one["fingerprint"] for one in raced
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


def domain(tab: Tab) -> tuple[float, float]:
    lanes = tab.one("svg.lanes")
    return float(lanes.get_attribute("data-from")), float(lanes.get_attribute("data-to"))


def test_timeline_zooms_moves_and_has_tooltips(tab: Tab, made: dict[str, Any]) -> None:
    tab.view("timeline")
    tab.wait(lambda: tab.find("svg.lanes .bar"))
    kinds = [one.get_attribute("data-kind") for one in tab.find("svg.lanes .timeline")]
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
    place = {"run": made["heading"]["run"], "tag": made["heading"]["tag"]}
    view = answer(urllib.parse.urljoin(tab.address, "/"), f"ranks?{urllib.parse.urlencode(place)}")
    assert [one["rank"] for one in view["ranks"]] == [0, 1]
    assert f"Step {view['step']}, 2 ranks" in tab.one("#skew").text
    for rank in view["ranks"]:
        assert rank["host"]
        for span in rank["spans"]:
            assert span["ready"] <= span["from"] <= span["exchange"] <= span["to"]


def selected(tab: Tab) -> set[str | None]:
    """Returns the groups that are marked in the timelines."""
    return {one.get_attribute("data-group") for one in tab.find("svg.lanes .bar.selected")}


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
        "aiacc",
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


def test_user_provided_plan_is_shown(tab: Tab, trained: Trained) -> None:
    given = Plan.from_json(trained.given["plan"])
    tab.choose("#version", "user-provided")
    tab.wait(lambda: len(tab.find("#groups tbody tr")) == len(given.groups))
    assert not tab.find("#backward")  # nothing is predicted without measurements
    for view in tensorboard_tab.VIEWS[1:]:
        tab.one(f"#tab-{view}").click()
        tab.wait(lambda name=view: tab.one("main").get_attribute("data-ready") == name)


def test_new_records_appear_without_reload(tab: Tab, trained: Trained, address: str) -> None:
    write(trained.logdir / "growing", examples.plan_record(function="growing"))
    tab.wait(lambda: any("growing" in option.text for option in Select(tab.one("#run")).options))
    tab.choose("#run", "growing")
    tab.view("history")
    drifts = [re.findall(r"\d+", one.text) for one in tab.find("main .drift")]
    assert drifts == [["66", "200", "50"], ["70", "51", "50"]]  # step, measured and expected ms
    points = "return document.querySelector('#history-lead').textContent"
    before = tab.script(points)
    writer = RecordWriter(trained.logdir / "growing", 0)
    writer.history(10**6, "growing", {"step_seconds": 0.01})
    writer.close()
    tab.wait(lambda: tab.script(points) != before)
    assert tab.one("main").get_attribute("data-ready") == "history"
    # Progress of a function without a plan.
    writer = RecordWriter(trained.logdir / "young", 0)
    writer.history(1, "young_step", {"step_seconds": 0.01, "max_tuning_steps": 60})
    writer.history(7, "young_step", {"step_seconds": 0.01})
    writer.close()
    tab.wait(lambda: "young_step: measuring, step 7 of 60" in tab.one("main").text)


def test_selection_works_during_slow_answers_and_fast_records(tab: Tab, trained: Trained) -> None:
    write(trained.logdir / "busy", examples.plan_record(function="busy"))
    tab.wait(lambda: any("busy" in option.text for option in Select(tab.one("#run")).options))
    tab.choose("#run", "busy")
    over = threading.Event()

    def keep_writing() -> None:
        writer = RecordWriter(trained.logdir / "busy", 0)
        for step in itertools.count(10**6):
            writer.history(step, "busy", {"step_seconds": 0.01})
            writer.flush()
            if over.wait(0.5):
                break
        writer.close()

    def choose_the_last() -> str | None:  # in the visible drawing, which may be replaced meanwhile
        rows = tab.find("[data-view]:not(.coming) #groups tbody tr")
        group = rows[-1].get_attribute("data-group") if rows else None
        if rows:
            rows[-1].click()
        return group

    # Drawing the plan takes three answers in sequence, longer than the interval between the page's
    # checks, each of which finds new records.
    with ThreadPoolExecutor(1) as pool, tab.far_away(2.0):
        writing = pool.submit(keep_writing)
        try:
            tab.one("#tab-history").click()
            tab.one("#tab-plan").click()
            tab.wait(lambda: tab.one("main").get_attribute("data-ready") == "plan")
            # A group can be selected while the view is redrawn in place, and stays selected.
            tab.wait(lambda: tab.find(".coming"))
            last = tab.wait(choose_the_last)
            tab.wait(lambda: tab.one("#detail").get_attribute("data-group") == last)
            tab.wait(lambda: not tab.find(".coming"))
            assert tab.wait(lambda: tab.one("#detail").get_attribute("data-group")) == last
            # Another view can be selected as well.
            tab.wait(lambda: tab.find(".coming"))
            tab.one("#tab-contention").click()
            tab.wait(lambda: tab.one("main").get_attribute("data-ready") == "contention")
            assert tab.one("#view").get_attribute("data-view") == "contention"
        finally:
            over.set()
            writing.result(60)


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


def test_reload_shows_new_records(tab: Tab, trained: Trained, address: str) -> None:
    before = len(answer(address, "runs")["plans"])
    write(trained.logdir / "second", examples.plan_record(function="later"))
    tab.wait(lambda: len(answer(address, "runs")["plans"]) == before + 1)
    tab.reload()
    tab.wait(lambda: any("second" in option.text for option in Select(tab.one("#run")).options))
    tab.choose("#run", "second")
    tab.wait(lambda: "61" in tab.one("#version").text)


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


# Runs with hostile names, large plans and unreadable records.


@pytest.fixture(scope="module")
def odd_address(hostile: Path) -> Iterator[str]:
    with tensorboard_tab.serving(hostile) as found:
        yield found


@pytest.fixture
def odd(browser: Tab, odd_address: str) -> Iterator[Tab]:
    browser.open(odd_address)
    yield browser
    assert browser.trouble() == []


def test_hostile_names_are_text(odd: Tab) -> None:
    odd.choose("#run", examples.HOSTILE[0])
    assert odd.one("#run").get_attribute("title").startswith(f"{HOSTILE_RUN}/rank_0, <script>")
    odd.one("#groups tbody tr").click()
    odd.wait(lambda: odd.one("#detail").get_attribute("data-group") == "0")
    # The tab may be redrawing the view.
    names = odd.wait(lambda: {one.get_attribute("title") for one in odd.find("#tensors .one-line")})
    assert examples.HOSTILE[0] in names
    for view in tensorboard_tab.VIEWS:
        odd.view(view)
        assert len(odd.find("script:not([src])")) == 1  # TensorBoard's own, which loads the tab
        # Long names are cut, so that the page is never wider than the window.
        width = odd.script("return document.documentElement.scrollWidth - window.innerWidth")
        assert width <= 0


def test_unreadable_records_have_messages(odd: Tab) -> None:
    messages = odd.texts(".message")
    assert len(messages) == 5
    assert any("must be 1, got 2" in message for message in messages)
    assert odd.find("#groups")  # the readable runs are shown


def test_large_plan_has_few_elements_and_scrolls(odd: Tab) -> None:
    odd.choose("#run", "large")
    assert len(odd.find("#groups tbody tr")) == 100
    assert odd.script("return document.querySelectorAll('*').length") < 4000
    odd.one("#filter").send_keys("layer_995/")
    odd.wait(lambda: odd.texts("#groups tbody tr td:first-child") != [])
    odd.wait(lambda: len(odd.find("#groups tbody tr")) == 1)
    assert odd.one("#found").text == "1 of 100"
    odd.script(
        "const f = document.querySelector('#filter'); f.value = '';"
        "f.dispatchEvent(new Event('input'))"
    )
    odd.wait(lambda: len(odd.find("#groups tbody tr")) == 100)
    for _ in range(2):  # ascending, then the largest first
        odd.one("#groups th[data-key='lost_seconds'] button").click()
    lost = odd.script(
        "return [...document.querySelectorAll('#groups tbody tr')].map((r) => r.dataset.group)"
    )
    assert lost != [str(k) for k in range(100)]
    assert len(odd.find("#overview .back")) == 100
    odd.view("timeline")
    select = Select(odd.one("#timeline-1"))
    before = odd.one("#difference").text
    select.select_by_visible_text(
        next(option.text for option in select.options if option.text.startswith("SynEASGD, r = 1"))
    )
    odd.wait(lambda: odd.one("#difference").text != before)
    odd.view("plan")
    assert len(odd.find("#tensors .tensor")) <= 40


def test_empty_directory_shows_instructions(browser: Tab, tmp_path: Path) -> None:
    with tensorboard_tab.serving(tmp_path) as address:
        browser.open(address)
        text = browser.one("#empty").text
        assert '@tf_libra.optimize("libra", logdir=' in text
        assert "tf-libra run -np 2 python train.py" in text
        limits = {
            name: (kind.tuning_steps, kind.tuning_seconds)
            for name, kind in strategies.BY_NAME.items()
        }
        most = limits["libra"]
        assert "by default at most {} steps or {:g} seconds (".format(*most) in text
        others = {name: limit for name, limit in limits.items() if limit != most}
        for name, (steps, seconds) in others.items():
            assert f"{name} {steps} or {seconds:g}" in text
        assert browser.trouble() == []


def burst_is_drawn(browser: Tab, burst: BurstRecord) -> None:
    """Checks the curve of ranks, both charts, and the card of background jobs."""
    card = browser.one(".burst")
    assert "a burst plan under deeppool, amplification at most 1.5" in card.text
    titles = browser.script(
        "return [...document.querySelectorAll('.burst .hit title')].map((one) => one.textContent)"
    )
    assert [title.rpartition(": ")[2] for title in titles] == [
        "1 rank" if count == 1 else f"{count} ranks" for count in burst.plan.num_devices
    ]
    path = browser.one(".burst .steps").get_attribute("d")
    heights = re.findall(r" ([\d.]+)H", path)
    alike = zip(heights, burst.plan.num_devices, strict=True)
    assert len(set(alike)) == len(set(heights)) == len(set(burst.plan.num_devices))
    bars = [
        len(chart.find_elements("css selector", "rect")) for chart in browser.find(".burst .gantt")
    ]
    assert bars[0] == len(burst.bars)
    titles = [one.text.split(":")[0] for one in browser.find(".burst .gantt figcaption")]
    assert titles == ["Measured", "Predicted"]
    idle = burst.plan.idle_seconds[1]
    assert f"Rank 1 is idle for {formatting.time(idle)}" in card.text.replace("\u00a0", " ")
    background = browser.one(".background").text.replace("\u00a0", " ")
    assert "25 steps per second" in background and "+3.1 %" in background
    assert "75.0 % of 64 steps" in background and "python other.py <fast>" in background


def test_pipeline_is_drawn_predicted_above_measured(browser: Tab, tmp_path: Path) -> None:
    record = examples.pipeline_record(names=examples.HOSTILE[:4])
    burst = examples.burst_record("other_step", names=examples.HOSTILE[:4])
    writer = RecordWriter(tmp_path, 0)
    writer.record(record.step, record)
    writer.record(burst.step, burst)
    writer.record(64, examples.background_record(function="other_step"))
    writer.close()
    with tensorboard_tab.serving(tmp_path) as address:
        browser.open(address)
        card = browser.one(".pipeline")
        assert "a pipeline of 2 stages under spp, 4 microbatches" in card.text
        assert "The bottleneck is stage" in card.text
        assert [one.text.split(":")[0] for one in browser.find(".pipeline .gantt figcaption")] == [
            "Predicted",
            "Measured",
        ]
        for chart in browser.find(".pipeline .gantt"):
            assert len(chart.find_elements("css selector", "rect")) == 2 * 2 * 4
        assert card.text.count("is idle for") == 4
        keys = browser.find(".pipeline .key > span")
        assert [key.text for key in keys] == ["forward", "backward", "all-reduce", "update"]
        assert len({key.location["y"] for key in keys}) == 1
        burst_is_drawn(browser, burst)
        assert browser.trouble() == []
