"""What people do with the console at night, done in a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import console_shop as shop
import pytest
from browsing import Open, apart

from milepost import Engine, Graph, MemoryStore, open_store

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = api.expect
expect.set_options(timeout=15_000)

Serve = Callable[[Engine], str]


def test_a_failed_run_is_found_and_its_traceback_read(serve: Serve, open_page: Open):
    page = open_page(serve(shop.full_engine()))
    row = page.locator("#failures ~ table tbody tr", has_text="LookupError")
    expect(row).to_contain_text("price")
    row.get_by_role("link", name="price-5").click()
    expect(page.locator(".sentence")).to_contain_text("no price for lamp")
    expect(page.locator("pre.traceback").first).to_contain_text("raise LookupError")
    expect(page.locator(".node.failed .name")).to_have_text("price")
    page.get_by_role("link", name="the state before it").click()
    expect(page.locator("pre.state")).to_contain_text('"found": true')


def test_a_retried_run_turns_green_while_another_process_works(serve: Serve, open_page: Open, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    engine = shop.new_engine(url)
    shop.fail(engine, shop.prices, {"item": "lamp"}, "r-1")
    program = [sys.executable, shop.__file__, url]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        page = open_page(f"{serve(engine)}/runs/r-1")
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".sentence .status")).to_have_text("ready")
        assert "ready\n" == worker.stdout.readline()  # type: ignore[union-attr]
        worker.communicate("go\n")
        expect(page.locator(".sentence .status")).to_have_text("finished")
        expect(page.locator(".node.done")).to_have_count(2)
    engine.close()


def test_a_wait_is_answered_by_its_form_and_the_run_goes_on(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page(f"{serve(engine)}/waits")
    page.get_by_role("region", name="pay-12").get_by_role("button", name="Yes").click()
    expect(page).to_have_url(re.compile("/runs/pay-12$"))
    apart(lambda: engine.worker().run(until_idle=True))
    expect(page.locator(".sentence .status")).to_have_text("finished")
    replies = [record for record in engine.store.read("pay-12") if record.kind == "reply"]
    assert ["bea"] == [record.fields().get("by") for record in replies]


def test_a_wrong_answer_stays_at_its_field(serve: Serve, open_page: Open):
    page = open_page(f"{serve(shop.full_engine())}/runs/o-16")
    page.get_by_label("amount").fill("many")
    page.get_by_label("note").fill("in a hurry")
    page.get_by_role("button", name="Send", exact=True).click()
    field = page.locator(".field", has=page.get_by_label("amount"))
    expect(field.get_by_role("alert")).to_contain_text("number")
    expect(page.get_by_label("amount")).to_have_value("many")
    expect(page.get_by_label("note")).to_have_value("in a hurry")


def test_a_run_is_forked_with_a_state_that_was_edited(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page(f"{serve(engine)}/runs/price-5")
    page.get_by_role("link", name="Fork").click()
    page.get_by_label("Id of the new run").fill("price-5b")
    state = json.loads(page.get_by_label("State").input_value())
    page.get_by_label("State").fill(json.dumps({**state, "price": 8}))
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".changes")).to_contain_text("price")
    page.get_by_label("leave it to the workers").check()
    page.get_by_role("button", name="Fork").click()
    expect(page).to_have_url(re.compile("/runs/price-5b"))
    apart(lambda: engine.worker().run(until_idle=True))
    expect(page.locator(".sentence .status")).to_have_text("finished")
    assert "failed" == engine.store.get_run("price-5").info.status


def test_thirty_runs_are_retried_at_once(serve: Serve, open_page: Open):
    engine = shop.new_engine()
    for number in range(31):
        shop.fail(engine, shop.prices, {"item": f"item {number}"}, f"r-{number}")
    page = open_page(f"{serve(engine)}/runs?status=failed")
    page.get_by_label("Choose all of this page").check()
    page.get_by_label("Choose r-7", exact=True).uncheck()
    page.get_by_role("button", name="Ask first").click()
    expect(page.locator("main")).to_contain_text("30 runs")
    page.get_by_role("button", name="Retry or go on").click()
    expect(page.locator("main")).to_contain_text("That was all.")
    statuses = {info.run_id: info.status for info in engine.list_runs(limit=100)}
    assert {"r-7"} == {run_id for run_id, status in statuses.items() if status == "failed"}


def test_the_next_runs_follow_by_themselves_until_somebody_stops(
    serve: Serve, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("milepost.console.bulk.BATCH", 2)
    engine = shop.new_engine()
    for number in range(5):
        shop.fail(engine, shop.prices, {}, f"r-{number}")
    address = serve(engine)
    page = open_page(f"{address}/bulk?what=requeue&status=failed")
    page.get_by_role("button", name="Retry or go on").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert 3 == len(engine.list_runs(status="failed"))
    page.get_by_role("button", name="The next 200").click()
    expect(page.locator("main")).to_contain_text("That was all.")
    assert [] == engine.list_runs(status="failed")


def test_the_counter_of_a_map_moves(serve: Serve, open_page: Open):
    ticket = threading.Semaphore(0)

    def pack(box: int) -> int:
        ticket.acquire()
        return box

    graph = Graph(dict).add_map("pack", over=lambda s: [0, 1, 2], fn=pack, merge=lambda s, r: s, max_parallel=1)
    packing = graph.add_edge("pack", "__end__").set_entry("pack").compile("packing")
    engine = Engine(MemoryStore(), flows=[packing])
    engine.start(packing, {}, run_id="r")
    with engine.worker(poll=0.05):
        ticket.release()
        page = open_page(f"{serve(engine)}/runs/r")
        expect(page.locator(".node .second")).to_have_text("1/3")
        node = page.locator(".node").element_handle()
        ticket.release(2)
        expect(page.locator(".node .second")).to_have_text("3/3")
        expect(page.locator(".sentence .status")).to_have_text("finished")
    assert node is not None
    assert node.evaluate("node => node.isConnected && node.classList.contains('done')"), "it was not drawn again"


def test_the_keyboard_is_enough(serve: Serve, open_page: Open):
    page = open_page(f"{serve(shop.full_engine())}/runs")
    press = page.keyboard.press
    press("j")
    expect(page.get_by_role("link", name="price-6")).to_be_focused()
    press("j")
    press("j")
    press("k")
    expect(page.get_by_role("link", name="refund-3")).to_be_focused()
    press("/")
    expect(page.get_by_label("Flow")).to_be_focused()
    page.keyboard.type("orders")
    press("Enter")
    expect(page).to_have_url(re.compile("flow=orders"))
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    press("j")
    expect(page.get_by_role("link", name="o-17", exact=True)).to_be_focused()
    press("Enter")
    expect(page).to_have_url(re.compile("/runs/o-17$"))
    page.locator(".node.failed a").last.focus()
    press("Enter")
    expect(page.locator("tr.chosen").first).to_contain_text("parcel/label")
    expect(page.locator(".timeline .chosen")).to_have_count(1)
    page.get_by_role("link", name="the state before it").focus()
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Record")
    page.get_by_role("link", name="Back to the run").click()
    page.wait_for_url(re.compile("/runs/o-17$"))  # and until its script listens
    press("d")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Record 28 ")
    press("[")
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("Record 28 ")


CLOSED_AND_AT_ONCE = """() => {
    const dialog = document.querySelector("#keys"), button = dialog.querySelector("button");
    dialog.showModal();
    dialog.close();
    button.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
}"""


def test_a_key_counts_from_the_moment_the_help_is_closed(serve: Serve, open_page: Open):
    # Until the page is drawn anew, Chromium leaves the focus on a button inside the closed dialog.
    page = open_page(f"{serve(shop.full_engine())}/runs")
    page.evaluate(CLOSED_AND_AT_ONCE)
    expect(page.get_by_role("link", name="price-6")).to_be_focused()


@pytest.mark.parametrize("width", [360, 390])
def test_phones_show_cards_and_nothing_beside_the_page(width: int, serve: Serve, open_page: Open):
    address = serve(shop.full_engine())
    page = open_page(address, width=width, has_touch=True, is_mobile=True)
    paths = (
        "/",
        "/runs",
        "/runs/o-17",
        "/runs/o-16",
        "/runs/refund-3",
        "/waits",
        "/flows",
        "/flows/orders",
        "/workers",
    )
    for path in (
        *paths,
        "/runs/o-17/at/20",
        "/runs/price-5/fork",
        "/store",
        "/bulk?what=cancel&flow=orders",
        "/nowhere",
    ):
        page.goto(address + path, wait_until="commit")
        page.wait_for_load_state()
        assert width == page.evaluate("document.documentElement.scrollWidth"), path
        small = page.evaluate(
            """[...document.querySelectorAll("button, select, textarea, nav a, tbody th a, input:not([type=hidden])")]
            .filter((part) => part.offsetParent && !part.closest("thead"))
            .map((part) => [part.closest("label")?.matches(":has(> [type=checkbox])") ? part.closest("label") : part, part])
            .filter(([part]) => part.getBoundingClientRect().height < 44).map(([, part]) => part.outerHTML)"""
        )
        assert not small, path


def test_everything_but_the_drawing_works_without_scripts(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page(serve(engine), java_script_enabled=False)
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_label("Id begins with").fill("price-5")
    page.get_by_role("button", name="Search").click()
    page.locator("tbody").get_by_role("link", name="price-5").click()
    expect(page.get_by_role("row", name="price#1").first).to_contain_text("failed")
    expect(page.get_by_role("button", name="Copy as Markdown")).to_be_hidden()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".sentence .status")).to_have_text("ready")
    page.goto(page.url.replace("price-5", "o-16"))
    page.get_by_label("amount").fill("1250")
    page.get_by_role("button", name="Send", exact=True).click()
    assert 1 == engine.store.latest("o-16").row.signals


# -- pages that follow -------------------------------------------------------------------------------------------


def test_a_live_page_keeps_focus_scroll_and_what_is_open(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page(f"{serve(engine)}/runs/o-16", height=500)
    page.get_by_text("All visits").click()
    page.get_by_text("Summary to copy").click()
    page.get_by_label("note").fill("half a sen")
    page.evaluate("scrollTo(0, 300)")
    shop.CLOCK.advance(5)
    engine.cancel("o-16", "not wanted")
    expect(page.locator(".sentence .status")).not_to_have_text("waiting")
    page.evaluate("scrollTo(0, scrollY)")
    expect(page.locator("#visits")).to_have_attribute("open", "")
    assert 300 == page.evaluate("scrollY")


def test_a_list_keeps_the_row_that_has_the_focus_and_what_is_chosen(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page(f"{serve(engine)}/runs")
    page.get_by_label("Choose price-5").check()
    page.get_by_role("link", name="price-5").focus()
    engine.start(shop.prices, {}, run_id="new-one")
    expect(page.get_by_role("link", name="new-one")).to_be_visible()
    expect(page.get_by_role("link", name="price-5")).to_be_focused()
    expect(page.get_by_label("Choose price-5")).to_be_checked()
    assert 1 == page.locator("#live [name=id]:checked").count()


def test_live_pages_can_be_paused_and_stop_when_nobody_looks(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page("about:blank")
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "part=live" in request.url else None)
    page.goto(f"{serve(engine)}/runs")
    button = page.locator("#follow")
    with page.expect_request(re.compile("part=live")):
        page.clock.run_for(5_000)
    button.click()
    expect(button).to_have_text("Paused")
    seen = len(asked)
    page.clock.run_for(60_000)
    assert seen == len(asked)
    button.click()
    with page.expect_request(re.compile("part=live")):
        page.clock.run_for(5_000)
    page.clock.fast_forward(601_000)
    expect(button).to_have_text("Stopped after 10 minutes: go on")
    button.click()
    expect(button).to_have_text("Live")


def test_a_store_that_does_not_answer_is_asked_again_later(serve: Serve, open_page: Open):
    engine = shop.full_engine()
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{serve(engine)}/runs")
    page.route("**/*part=live*", lambda route: route.fulfill(status=503, body="later"))
    page.clock.run_for(5_000)
    expect(page.locator("#follow")).to_have_text("No answer, trying again")
    page.unroute_all()
    page.clock.run_for(11_000)
    expect(page.locator("#follow")).to_have_text("Live")


def test_a_summary_is_copied(serve: Serve, open_page: Open):
    page = open_page(f"{serve(shop.full_engine())}/runs/o-17", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("**o-17** (orders) is failed")
    assert copied.endswith(f"\n- {page.url}")


def test_a_store_opened_by_its_address_can_be_looked_at(serve: Serve, open_page: Open, tmp_path: Path):
    engine = Engine(open_store(f"file://{tmp_path}/runs"))
    page = open_page(serve(engine))
    expect(page.locator("main")).to_contain_text("No run has failed")
    engine.close()
