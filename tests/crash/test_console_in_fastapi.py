"""The example of a console inside FastAPI: who may look, who may act, and that a worker goes on after an answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "console_in_fastapi.py"
OWN = {"sec-fetch-site": "same-origin"}


def load() -> Any:
    spec = importlib.util.spec_from_file_location("console_in_fastapi", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_for(status: str, client: TestClient) -> None:
    """Wait for the worker, which has a thread of its own."""
    while client.get("/milepost/runs/o-17?format=json").json()["run"]["status"] != status:
        pass


def test_the_application_says_who_may_look_and_act(tmp_path: Path):
    app = load().make_app(f"sqlite:///{tmp_path / 'runs.db'}")
    with TestClient(app, base_url="http://shop.example") as client:
        assert {"run": "o-17"} == client.post("/orders/o-17").json()
        assert 401 == client.get("/milepost/runs").status_code
        assert 200 == client.get("/milepost/runs?as=bea").status_code
        wait_for("waiting", client)
        answer = {"wait": "approve#1", "field:": "true"}
        assert 403 == client.post("/milepost/runs/o-17/answer", data=answer, headers=OWN).status_code
        assert 200 == client.get("/milepost/?as=ada").status_code
        assert 200 == client.post("/milepost/runs/o-17/answer", data=answer, headers=OWN).status_code
        assert 403 == client.post("/milepost/runs/o-17/delete", headers={"sec-fetch-site": "cross-site"}).status_code
        wait_for("finished", client)
        assert "shipped o-17" == client.get("/milepost/runs/o-17?format=json").json()["output"]


def test_a_login_leads_to_no_other_host(tmp_path: Path):
    app = load().make_app(f"sqlite:///{tmp_path / 'runs.db'}")
    with TestClient(app, base_url="http://shop.example", follow_redirects=False) as client:
        for path in ("//evil.example/", "/evil.example/"):
            assert "/evil.example/" == client.get(f"http://shop.example{path}?as=ada").headers["location"]
