"""An agent's loop over a LangGraph-style state. It stops before a tool runs, and goes on when somebody has approved.

    python agent_loop.py [STORE]

The model is a stand-in: a script that answers by what it has been told so far. Put a call to yours in its place. Its
answers are recorded, so a run that is resumed does not pay for them again.
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from milepost import END, Graph, SQLiteStore
from milepost.errors import RunStopped


class Chat(TypedDict):
    """Messages add up; the number of calls is summed."""

    messages: Annotated[list[dict[str, Any]], operator.add]
    calls: Annotated[int, operator.add]


def model(state: Chat) -> dict[str, Any]:
    """Answer, or ask for a tool. A node returns only what changed; the reducers do the rest."""
    print(f"  the model reads {len(state['messages'])} messages")
    results = [message["content"] for message in state["messages"] if message["role"] == "tool"]
    if not results:
        answer = {"role": "assistant", "content": "", "tool": "multiply", "arguments": [17, 23]}
    elif len(results) == 1:
        answer = {"role": "assistant", "content": "", "tool": "multiply", "arguments": [results[0], 2]}
    else:
        answer = {"role": "assistant", "content": f"It is {results[-1]}."}
    return {"messages": [answer], "calls": 1}


def tools(state: Chat) -> dict[str, Any]:
    first, second = state["messages"][-1]["arguments"]
    print(f"  the tool multiplies {first} and {second}")
    return {"messages": [{"role": "tool", "content": first * second}]}


def wants_tool(state: Chat) -> str:
    return "tools" if "tool" in state["messages"][-1] else END


agent = (
    Graph(Chat, partial=True)
    .add_node("model", model)
    .add_node("tools", tools)
    .set_entry("model")
    .add_conditional_edge("model", wants_tool, ["tools", END])
    .add_edge("tools", "model")
    .compile("agent")
)


def main(path: str) -> None:
    question: Chat = {"messages": [{"role": "user", "content": "What is 17 times 23, doubled?"}], "calls": 0}
    with SQLiteStore(path) as store:
        try:
            chat = agent.run(question, store=store, run_id="chat-1", if_exists="resume", stop_before="tools")
        except RunStopped as stopped:
            request = stopped.state["messages"][-1]
            print(f"stopped before {stopped.node_id!r}: approve {request['tool']}({request['arguments']})")
            # Here the program could end, and another one could go on tomorrow.
            chat = agent.resume(store, "chat-1")
        print(f"after {chat['calls']} calls of the model: {chat['messages'][-1]['content']}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agent.db")
