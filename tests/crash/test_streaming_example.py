"""The example of a streamed answer, started for real: the page's process, and a worker in another one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "streaming.py"
QUESTION = "What is durable?"
WORDS = f"You asked: {QUESTION} - and here is a long answer, word by word.".split()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PACE": "0.01", "STORE": f"sqlite:///{tmp_path}/answers.db"}
    started = [
        subprocess.Popen([sys.executable, str(EXAMPLE), *arguments], cwd=tmp_path, env=env)
        for arguments in (("serve", str(port)), ("work",))
    ]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        deadline = time.monotonic() + 30
        while True:
            try:
                client.get("/")
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the page did not come up"
                time.sleep(0.02)
        yield client
    for process in started:
        process.kill()
        process.wait()


def events_of(client: httpx.Client, chat_id: str) -> list[dict[str, object]]:
    with client.stream("GET", f"/chats/{chat_id}/events") as response:
        return [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]


def test_the_words_of_a_worker_reach_the_page_and_those_who_come_late(client: httpx.Client) -> None:
    client.post("/chats/c-1", params={"question": QUESTION})
    for events in (events_of(client, "c-1"), events_of(client, "c-1")):
        tokens = [event for event in events if event["kind"] == "token"]
        assert WORDS == [str(event["data"]).strip() for event in tokens]
        assert [*range(1, len(WORDS) + 1)] == [event["number"] for event in tokens]
        assert "RunCompleted" == events[-1]["kind"]
