"""A graph as text for Mermaid and Graphviz.

Only ids and arrows come in. The same graph always gives the same text; every name is escaped, and nodes are numbered,
so that no id can break the drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from milepost.errors import OptionError
from milepost.flow import END, START

__all__ = ["COLOURS", "Arrow", "to_dot", "to_mermaid"]

COLOURS: Mapping[str, tuple[str, str]] = {
    "done": ("#d3f2d8", "#2d8a3e"),
    "running": ("#d6e8fb", "#1f6fb8"),
    "failed": ("#fbd9d6", "#b8291f"),
    "next": ("#fdf3cf", "#a37c0c"),
    "waiting": ("#e9def7", "#6b3fa0"),
}
"""What a node's status looks like: the colour of its face and of its border."""

_LONGEST_LABEL = 40


class Arrow(NamedTuple):
    """An edge. `target` None: anywhere. `label` is the router's answer where that is not the target's own id."""

    source: str
    target: str | None
    label: str = ""
    is_conditional: bool = False


def to_mermaid(nodes: Sequence[str], arrows: Sequence[Arrow], status: Mapping[str, str] | None = None) -> str:
    """Draw a Mermaid flowchart; conditional edges are dotted.

    `status` maps node ids to done, running, failed, next or waiting, and colours them; ids that the graph does not
    have are left out. Raises `OptionError` for another status.
    """
    names = _names(nodes)
    lines = ["flowchart TD", "    start([start])"]
    lines += [f'    {names[node]}["{_mermaid_text(node)}"]' for node in nodes]
    lines.append("    finish([end])")
    if any(arrow.target is None for arrow in arrows):
        lines.append('    anywhere{{"any node"}}')
    for arrow in arrows:
        line = "-.->" if arrow.is_conditional else "-->"
        label = f'|"{_mermaid_text(_short(arrow.label))}"|' if arrow.label else ""
        lines.append(f"    {names[arrow.source]} {line}{label} {names[arrow.target]}")
    for kind, ids in _by_status(nodes, status).items():
        face, border = COLOURS[kind]
        lines.append(f"    classDef {kind} fill:{face},stroke:{border},color:#000")
        lines.append(f"    class {','.join(names[node] for node in ids)} {kind}")
    return "\n".join(lines) + "\n"


def to_dot(
    nodes: Sequence[str], arrows: Sequence[Arrow], status: Mapping[str, str] | None = None, name: str = "graph"
) -> str:
    """Draw a Graphviz digraph called `name`; the rest as for `to_mermaid`."""
    names = _names(nodes)
    kinds = {node: kind for kind, ids in _by_status(nodes, status).items() for node in ids}
    lines = [f"digraph {_dot_text(name)} {{", "    node [shape=box, style=rounded];"]
    lines.append('    start [label="start", shape=circle];')
    for node in nodes:
        colours = ""
        if node in kinds:
            face, border = COLOURS[kinds[node]]
            colours = f', style="rounded,filled", fillcolor="{face}", color="{border}"'
        lines.append(f"    {names[node]} [label={_dot_text(node)}{colours}];")
    lines.append('    finish [label="end", shape=doublecircle];')
    if any(arrow.target is None for arrow in arrows):
        lines.append('    anywhere [label="any node", shape=hexagon];')
    for arrow in arrows:
        options = ["style=dashed"] if arrow.is_conditional else []
        options += [f"label={_dot_text(_short(arrow.label))}"] if arrow.label else []
        tail = f" [{', '.join(options)}]" if options else ""
        lines.append(f"    {names[arrow.source]} -> {names[arrow.target]}{tail};")
    return "\n".join([*lines, "}"]) + "\n"


def _names(nodes: Sequence[str]) -> dict[str | None, str]:
    """A name that both languages take, for each node, START, END and anywhere."""
    names: dict[str | None, str] = {node: f"n{number}" for number, node in enumerate(nodes)}
    return names | {START: "start", END: "finish", None: "anywhere"}


def _by_status(nodes: Sequence[str], status: Mapping[str, str] | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node, kind in (status or {}).items():
        if kind not in COLOURS:
            raise OptionError(
                f"status of node {node!r} must be one of {', '.join(COLOURS)}, not {kind!r}", option="status"
            )
    for node in nodes:
        if status and node in status:
            found.setdefault(status[node], []).append(node)
    return found


def _short(label: str) -> str:
    text = " ".join(label.split())
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _mermaid_text(text: str) -> str:
    # Mermaid reads #35; as a character; everything that it might take for syntax is written so.
    return "".join(c if c.isalnum() or c in " _-.:,/…" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
