"""The Libra tab in a real browser while records are added."""

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor

from selenium.webdriver.support.select import Select

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.conftest import Trained, write
from tf_libra.reporting.records.event_writer import RecordWriter
from tools.tensorboard_tab import Tab, answer


def test_new_records_appear_without_reload(tab: Tab, trained: Trained, address: str) -> None:
    write(trained.logdir / "growing", examples.plan_record(function="growing"))
    tab.wait(lambda: any("growing" in option.text for option in Select(tab.one("#run")).options))
    tab.choose("#run", "growing")
    tab.view("history")
    drifts = [re.findall(r"\d+", line.text) for line in tab.find("main .drift")]
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


def test_reload_shows_new_records(tab: Tab, trained: Trained, address: str) -> None:
    before = len(answer(address, "runs")["plans"])
    write(trained.logdir / "second", examples.plan_record(function="later"))
    tab.wait(lambda: len(answer(address, "runs")["plans"]) == before + 1)
    tab.reload()
    tab.wait(lambda: any("second" in option.text for option in Select(tab.one("#run")).options))
    tab.choose("#run", "second")
    tab.wait(lambda: "61" in tab.one("#version").text)
