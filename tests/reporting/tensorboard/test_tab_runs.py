"""Hostile names, large plans, unreadable records and other kinds of runs in the Libra tab."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.support.select import Select

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import HOSTILE_RUN
from tf_libra import strategies
from tf_libra.internal import formatting
from tf_libra.model_parallel.reporting.plan_records import BurstRecord
from tf_libra.reporting.records.event_writer import RecordWriter
from tools import tensorboard_tab
from tools.tensorboard_tab import Tab, answer


@pytest.fixture(scope="module")
def odd_address(hostile: Path) -> Iterator[str]:
    with tensorboard_tab.serving(hostile) as found:
        yield found


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A log directory without records, and the address of its TensorBoard."""
    logdir = tmp_path_factory.mktemp("empty")
    with tensorboard_tab.serving(logdir) as found:
        yield logdir, found


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
    names = odd.wait(
        lambda: {element.get_attribute("title") for element in odd.find("#tensors .one-line")}
    )
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


def test_empty_directory_shows_instructions(browser: Tab, empty: tuple[Path, str]) -> None:
    _, address = empty
    browser.open(address)
    text = browser.one("#empty").text
    assert '@tf_libra.optimize("libra", logdir=' in text
    assert "tf-libra run -np 2 python train.py" in text
    limits = {
        name: (kind.tuning_steps, kind.tuning_seconds) for name, kind in strategies.BY_NAME.items()
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
    titles = [caption.text.split(":")[0] for caption in browser.find(".burst .gantt figcaption")]
    assert titles == ["Measured", "Predicted"]
    idle = burst.plan.idle_seconds[1]
    assert f"Rank 1 is idle for {formatting.time(idle)}" in card.text.replace("\u00a0", " ")
    background = browser.one(".background").text.replace("\u00a0", " ")
    assert "25 steps per second" in background and "+3.1 %" in background
    assert "75.0 % of 64 steps" in background and "python other.py <fast>" in background


def test_pipeline_is_drawn_predicted_above_measured(browser: Tab, empty: tuple[Path, str]) -> None:
    """Also records that are written while TensorBoard runs."""
    logdir, address = empty
    record = examples.pipeline_record(names=examples.HOSTILE[:4])
    burst = examples.burst_record("other_step", names=examples.HOSTILE[:4])
    writer = RecordWriter(logdir, 0)
    writer.record(record.step, record)
    writer.record(burst.step, burst)
    writer.record(64, examples.background_record(function="other_step"))
    writer.close()
    kinds = ("pipelines", "bursts", "backgrounds")
    browser.wait(lambda: all(answer(address, "runs").get(kind) for kind in kinds))
    browser.open(address)
    card = browser.one(".pipeline")
    assert "a pipeline of 2 stages under spp, 4 microbatches" in card.text
    assert "The bottleneck is stage" in card.text
    assert [
        caption.text.split(":")[0] for caption in browser.find(".pipeline .gantt figcaption")
    ] == [
        "Predicted",
        "Measured",
    ]
    for chart in browser.find(".pipeline .gantt"):
        assert len(chart.find_elements("css selector", "rect")) == 2 * 2 * 4
    assert card.text.count("is idle for") == 4
    keys = browser.find(".pipeline .key > span")
    reduced = ["gradients of all microbatches", "all-reduce", "update"]
    assert [key.text for key in keys] == ["forward", "backward", *reduced]
    assert len({key.location["y"] for key in keys}) == 1
    burst_is_drawn(browser, burst)
    assert browser.trouble() == []
