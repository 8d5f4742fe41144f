"""An agent in the style of LangGraph: tools that run at once, and a person who approves what is dangerous.

    python agent_graph.py [STORE] [--answer yes|no|later] [--pause SECONDS]

The state is a TypedDict with reducers. The model asks for tools; `approve` is a wait, which parks the run until somebody
has answered; `tools` is a map over the calls, each recorded for itself. What the user says next is the next turn of the
same run. With `--answer later` the program ends while the run waits, and its next call answers. Kill it anywhere
(`kill -9`, with --pause 1 there is time) and start it again: no answer of the model and no tool that is recorded is paid
for again.

The model is a stand-in: a script that answers by what it has been told so far. Put a call to yours into `model`. The tools
are stand-ins too.
"""

from __future__ import annotations

import argparse
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from milepost import END, Context, Graph, Reply, RunNotFoundError, RunSuspended, SQLiteStore
from milepost.events import Emitted

PAUSE = 0.0


@dataclass(frozen=True)
class Call:
    """A tool that the model asks for."""

    id: str
    tool: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class Message:
    role: str
    text: str
    calls: tuple[Call, ...] = ()
    answers: str = ""  # the id of the call that this is the result of


@dataclass(frozen=True)
class Approval:
    """What a person answers."""

    approved: bool
    by: str


class Chat(TypedDict):
    """What nodes return for `messages` is added to what is there."""

    messages: Annotated[list[Message], operator.add]
    rounds: Annotated[int, operator.add]


def begin(what: str) -> None:
    print(f"  {what}\n", end="", flush=True)  # one write, for tools that run at once
    time.sleep(PAUSE)


# -- tools ---------------------------------------------------------------------------------------------------


def weather(city: str) -> str:
    return {"Seattle": "11 C and rain", "Portland": "13 C and sun"}[city]


def find_order(order: str) -> str:
    return f"{order}: 3 pens, 4.50, paid"


def refund(order: str) -> str:
    return f"{order} is refunded"


TOOLS: dict[str, Callable[..., str]] = {"weather": weather, "find_order": find_order, "refund": refund}
DANGEROUS = {"refund"}
QUESTIONS = ["How is the weather in Seattle and in Portland?", "Please refund order o-17."]


# -- nodes ---------------------------------------------------------------------------------------------------


def model(ctx: Context[Any], chat: Chat) -> dict[str, Any]:
    """Ask the model, and pass its tokens on while they come. A node returns only what changed; reducers do the rest."""
    begin(f"model reads {len(chat['messages'])} messages")
    answer = scripted(chat["messages"])
    for token in answer.text.split():
        ctx.emit("token", token)
    if answer.text:
        ctx.emit("token", "\n")
    return {"messages": [answer], "rounds": 1}


def use(ctx: Context[Any], call: Call) -> Message:
    """What is done for each call. A real tool hands on `ctx.idempotency_key`: it is the same when the call runs again."""
    begin(f"{call.tool} {' '.join(call.arguments.values())}")
    return Message("tool", TOOLS[call.tool](**call.arguments), answers=call.id)


def pending(chat: Chat) -> list[Call]:
    """The calls that have no result yet."""
    answered = {message.answers for message in chat["messages"]}
    return [call for message in chat["messages"] for call in message.calls if call.id not in answered]


def dangerous(chat: Chat) -> list[Call]:
    return [call for call in pending(chat) if call.tool in DANGEROUS]


def question(chat: Chat) -> list[dict[str, Any]]:
    """What the person is shown; it is recorded with the wait."""
    return [{"tool": call.tool, **call.arguments} for call in dangerous(chat)]


def decide(chat: Chat, reply: Reply[Approval]) -> dict[str, Any]:
    """What becomes of the answer: a call that was not approved gets that as its result."""
    if reply.payload is not None and reply.payload.approved:
        return {}
    why = "nobody answered in time" if reply.payload is None else f"{reply.payload.by} said no"
    return {"messages": [Message("tool", f"not approved: {why}", answers=call.id) for call in dangerous(chat)]}


# -- the graph -----------------------------------------------------------------------------------------------


def after_model(chat: Chat) -> str:
    if not pending(chat):
        return END
    return "approve" if dangerous(chat) else "tools"


def after_approval(chat: Chat) -> str:
    return "tools" if pending(chat) else "model"


agent = (
    Graph(Chat, partial=True)
    .add_node("model", model)
    .add_wait("approve", "approval", apply=decide, payload=Approval, prompt=question, timeout=7 * 24 * 3600)
    .add_map("tools", pending, use, merge=lambda chat, results: {"messages": results})
    .set_entry("model")
    .add_conditional_edge("model", after_model, ["approve", "tools", END])
    .add_conditional_edge("approve", after_approval, ["tools", "model"])
    .add_edge("tools", "model")
    .compile("agent")
)


def scripted(messages: Sequence[Message]) -> Message:
    """The stand-in for a model: what it says depends on the newest question and on what came since."""
    at = max(place for place, message in enumerate(messages) if message.role == "user")
    text, results = messages[at].text, [message.text for message in messages[at + 1 :] if message.role == "tool"]
    if "weather" in text:
        if not results:
            calls = [Call(f"{at}-{city}", "weather", {"city": city}) for city in ("Seattle", "Portland")]
            return Message("assistant", "Let me look.", tuple(calls))
        return Message("assistant", f"Seattle has {results[0]}, Portland {results[1]}.")
    if len(results) < 2:
        tool = "refund" if results else "find_order"
        return Message("assistant", "", (Call(f"{at}-{tool}", tool, {"order": "o-17"}),))
    return Message("assistant", f"I asked for it: {results[1]}.")


# -- talking to it -------------------------------------------------------------------------------------------


def show_tokens(event: object) -> None:
    """A hook: prints the tokens as they come."""
    if isinstance(event, Emitted) and event.name == "token":
        print(event.data, end="" if event.data == "\n" else " ", flush=True)


def turn(store: SQLiteStore, run_id: str, text: str) -> list[Message]:
    """Say something, in a new run or as the next turn of one that has finished; all messages up to the answer.

    Raises `RunSuspended` while the turn waits for an approval.
    """
    said: Chat = {"messages": [Message("user", text)], "rounds": 0}
    return agent.run(said, store=store, run_id=run_id, if_exists="continue", hooks=[show_tokens])["messages"]


def go_on(store: SQLiteStore, run_id: str) -> list[Message]:
    """Finish the turn that was begun, if it is not; all messages of the conversation, [] for one that has not begun."""
    try:
        return agent.resume(store, run_id, hooks=[show_tokens])["messages"]
    except RunNotFoundError:
        return []


def conversation(store: SQLiteStore, run_id: str) -> list[Message]:
    messages = go_on(store, run_id)
    asked = sum(message.role == "user" for message in messages)
    for text in QUESTIONS[asked:]:
        messages = turn(store, run_id, text)
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent whose dangerous calls somebody approves.")
    parser.add_argument("store", nargs="?", default="agent_graph.db")
    parser.add_argument("--answer", choices=["yes", "no", "later"], default="yes")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each call takes longer")
    arguments = parser.parse_args()
    global PAUSE
    PAUSE = arguments.pause
    with SQLiteStore(arguments.store) as store:
        try:
            messages = conversation(store, "chat-1")
        except RunSuspended as waiting:
            (wait,) = waiting.waiting_for
            print(f"waits at {wait.wait_id} for {wait.signal!r}: {wait.prompt}")
            if arguments.answer == "later":
                return
            answer = Approval(approved=arguments.answer == "yes", by="bea")
            agent.signal(store, "chat-1", "approval", answer, signal_id=wait.wait_id)  # from any process, any day
            messages = conversation(store, "chat-1")
    for message in messages:
        told = message.text or ", ".join(f"{call.tool}({call.arguments})" for call in message.calls)
        print(f"{message.role}: {told}")


if __name__ == "__main__":
    main()
