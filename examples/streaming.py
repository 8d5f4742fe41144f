"""An answer that appears word by word on a page, while a worker in another process writes it: FastAPI, server-sent events.

    pip install fastapi uvicorn
    python streaming.py work &        # as many as you like, here or on other machines
    python streaming.py serve         # then open http://localhost:8000

Ask something, and reload the page while the answer is written: it begins again from the start, for the words of the last
minutes are kept. Kill the worker (`kill -9`) and start another one: the answer is written again, under a new epoch.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from milepost import END, START, Context, Engine, Graph
from milepost.events import EventsMissed, UnrecordedEvent

STORE = os.environ.get("STORE", "sqlite:///answers.db")
PACE = float(os.environ.get("PACE", "0.1"))
"""Seconds that the model takes for a word."""


@dataclass(frozen=True)
class Chat:
    question: str
    answer: str = ""


async def model(question: str) -> AsyncIterator[str]:
    """Stand in for a model that streams its answer."""
    for word in f"You asked: {question} - and here is a long answer, word by word.".split():
        await asyncio.sleep(PACE)
        yield f"{word} "


async def answer(ctx: Context, chat: Chat) -> Chat:
    words = []
    async for word in model(chat.question):
        ctx.emit("token", word)  # for whoever listens now
        words.append(word)
    return replace(chat, answer="".join(words).strip())  # recorded


agent = Graph(Chat).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile("agent")


def told(event: Any) -> dict[str, Any]:
    """Say of an event what the page needs."""
    if isinstance(event, EventsMissed):
        return {"kind": "missed", "count": event.count}
    if isinstance(event, UnrecordedEvent):
        name, data = getattr(event, "name", type(event).__name__), getattr(event, "data", None)
        return {"kind": name, "data": data, "epoch": event.epoch, "number": event.number}
    return {"kind": type(event).__name__}


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    async with Engine(STORE, flows=[agent]) as engine:  # it runs nothing: that is the worker's business
        app.state.engine = engine
        yield


app = FastAPI(lifespan=life)


@app.post("/chats/{chat_id}")
async def ask(chat_id: str, question: str) -> dict[str, str]:
    await app.state.engine.astart(agent, Chat(question), run_id=chat_id, if_exists="return")
    return {"events": f"/chats/{chat_id}/events"}


@app.get("/chats/{chat_id}/events")
async def events(chat_id: str) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async for event in app.state.engine.handle(chat_id).aevents():
            yield f"data: {json.dumps(told(event))}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


PAGE = """<!doctype html><meta charset="utf-8"><title>Answers</title>
<form><input name="question" size="60" autofocus><button>Ask</button></form><p></p>
<script>
const answer = document.querySelector("p")
function follow(id) {
  let epoch = 0
  const source = new EventSource(`/chats/${id}/events`)
  source.onmessage = message => {
    const event = JSON.parse(message.data)
    if (event.kind === "token") {
      if (event.epoch !== epoch) { epoch = event.epoch; answer.textContent = "" }  // written again after a crash
      answer.textContent += event.data
    }
    if (event.kind === "RunCompleted") source.close()
  }
  source.onopen = () => { epoch = 0; answer.textContent = "" }
}
if (location.hash) follow(location.hash.slice(1))
document.querySelector("form").onsubmit = async submitted => {
  submitted.preventDefault()
  const id = crypto.randomUUID(), question = new FormData(submitted.target).get("question")
  await fetch(`/chats/${id}?question=${encodeURIComponent(question)}`, {method: "POST"})
  location.hash = id
  follow(id)
}
</script>
"""


def main(mode: str = "serve", port: str = "8000") -> None:
    if mode == "work":
        with Engine(STORE, flows=[agent]) as engine:
            engine.worker(poll=0.1).run()
        return
    import uvicorn

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
