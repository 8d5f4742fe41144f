"""All pages, light and dark, held to the rules of axe: contrast, names, roles, order of headings."""

from __future__ import annotations

from collections.abc import Callable

import console_shop as shop
import pytest
from browsing import Open

from milepost import Engine

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

PAGES = (
    "/",
    "/runs",
    "/runs/o-17",
    "/runs/o-16",
    "/runs/refund-3",
    "/runs/pay-12",
    "/runs/o-17/at/20",
    "/runs/price-5/fork?node=find",
    "/runs/refund-3/plan",
    "/runs/o-16/cancel",
    "/runs/o-17/delete",
    "/bulk?what=requeue&status=failed",
    "/waits",
    "/workers",
    "/flows",
    "/flows/orders",
    "/store",
    "/store?stats=1",
    "/runs/o-99",
)
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 390)])
def test_axe_finds_nothing(scheme: str, width: int, serve: Callable[[Engine], str], open_page: Open):
    address = serve(shop.full_engine())
    page = open_page("about:blank", width=width, color_scheme=scheme, reduced_motion="reduce")
    wrong = {}
    for path in PAGES if width > 400 else PAGES[:5]:
        page.goto(address + path)
        found = axe.Axe().run(page, options=RULES).response["violations"]
        for rule in found:
            wrong[path, rule["id"]] = [node["html"][:200] for node in rule["nodes"]][:4]
    assert {} == wrong
