"""A graph as text for Mermaid and Graphviz.

Only ids and arrows come in. The same graph always gives the same text; every name is escaped, and nodes are numbered,
so that no id can break the drawing. A graph inside a node is a frame with its nodes in it, under their whole ids; in a
map `m`, `m/*/x` stands for node `x` of every item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from milepost.errors import OptionError, shown
from milepost.executor.flow import END, START
from milepost.graph.topology import Topology

COLOURS: Mapping[str, tuple[str, str]] = {
    "done": ("#d3f2d8", "#2d8a3e"),
    "running": ("#d6e8fb", "#1f6fb8"),
    "failed": ("#fbd9d6", "#b8291f"),
    "next": ("#fdf3cf", "#a37c0c"),
    "waiting": ("#e9def7", "#6b3fa0"),
}
"""The colours of a node with each status: that of its face and that of its border."""

_LONGEST_LABEL = 40
_LONGEST_NOTE = 60
_FIRST = ("running", "failed", "waiting", "next", "done")
"""The order of statuses for the same node of many items: the first that one of them has is shown."""


class Arrow(NamedTuple):
    """An edge. `target` None: anywhere. `label` is the router's answer if it differs from the target's id."""

    source: str
    target: str | None
    label: str = ""
    is_conditional: bool = False
    is_branch: bool = False
    """True if a branch of a fork begins with it, or ends with it at the join."""


class Picture(msgspec.Struct, frozen=True):
    """The drawing of one graph, as data: `inner` are the drawings of graphs inside its nodes."""

    nodes: tuple[str, ...]
    arrows: tuple[Arrow, ...]
    kinds: Mapping[str, Mapping[str, Any]] = {}
    inner: Mapping[str, Picture] = {}


def picture_of(topology: Topology, inner: Mapping[str, Picture] | None = None) -> Picture:
    """Make the picture of a graph, and of the graphs inside it."""
    branches = _branch_arrows(topology)
    arrows = [] if topology.entry is None else [Arrow(START, topology.entry)]
    for node in topology.nodes:
        arrows += [Arrow(node, target, is_branch=(node, target) in branches) for target in topology.edges.get(node, ())]
        for targets in topology.routes.get(node, ()):
            if targets is None:
                arrows.append(Arrow(node, None, is_conditional=True))
                continue
            for answer, target in targets.items():
                label = "" if answer == target else str(answer)
                arrows.append(Arrow(node, target, label, True, (node, target) in branches))
    return Picture(topology.nodes, tuple(arrows), topology.kinds, inner or {})


def recorded_picture(shape: Mapping[str, Any]) -> Picture:
    """Make the picture of a graph from a `shape` that a run has recorded. It lacks the answers of routers."""
    topology = Topology.of(shape)
    inner = {node: recorded_picture(kind["shape"]) for node, kind in topology.kinds.items() if kind.get("shape")}
    return picture_of(topology, inner)


def _branch_arrows(topology: Topology) -> set[tuple[str, str]]:
    """Return the arrows with which branches begin, and those with which they may end."""
    found: set[tuple[str, str]] = set()
    for fork in topology.forks.values():
        found.update((fork.node_id, branch) for branch in fork.branches)
        found.update((node, fork.join) for node in fork.nodes)
    return found


# -- Mermaid -------------------------------------------------------------------------------------------------

_MERMAID_SHAPES = {"map": ("[[", "]]"), "wait": ("[/", "/]"), "timer": (">", "]")}


def to_mermaid(
    picture: Picture, status: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None
) -> str:
    """Draw a Mermaid flowchart; conditional edges are dotted, those that begin or end a branch of a fork are thick.

    `status` maps whole ids of nodes to done, running, failed, next or waiting, and colours them; `notes` maps them to
    the text below their names. Ids that the graph does not have are left out. Raises `OptionError` for another status.
    """
    lines = ["flowchart TD", *_mermaid_lines(picture, "", "", "    ", notes or {})]
    for kind, names in _by_status(picture, status).items():
        face, border = COLOURS[kind]
        lines.append(f"    classDef {kind} fill:{face},stroke:{border},color:#000")
        lines.append(f"    class {','.join(names)} {kind}")
    return "\n".join(lines) + "\n"


def _mermaid_lines(picture: Picture, before: str, prefix: str, margin: str, notes: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one graph; `before` begins the names of its nodes, `prefix` their whole ids."""
    yield f"{margin}{before}start{'(( ))' if before else '([start])'}"
    for number, node in enumerate(picture.nodes):
        name, label = f"{before}n{number}", "<br/>".join(map(_mermaid_text, _label(picture, node, prefix, notes)))
        inner = picture.inner.get(node)
        if inner is None:
            opening, closing = _MERMAID_SHAPES.get(_kind(picture, node), ("[", "]"))
            yield f'{margin}{name}{opening}"{label}"{closing}'
            continue
        yield f'{margin}subgraph {name}["{label}"]'
        yield from _mermaid_lines(inner, f"{name}_", inside(picture, node, prefix), f"{margin}    ", notes)
        yield f"{margin}end"
    yield f"{margin}{before}finish{'(( ))' if before else '([end])'}"
    if any(arrow.target is None for arrow in picture.arrows):
        yield f'{margin}{before}anywhere{{{{"any node"}}}}'
    sources, targets = _ends(picture, before)
    for arrow in picture.arrows:
        line = "-.->" if arrow.is_conditional else "==>" if arrow.is_branch else "-->"
        label = f'|"{_mermaid_text(_short(arrow.label))}"|' if arrow.label else ""
        yield f"{margin}{sources[arrow.source]} {line}{label} {targets[arrow.target]}"


# -- Graphviz ------------------------------------------------------------------------------------------------

_DOT_SHAPES = {"map": "peripheries=2", "wait": "shape=parallelogram", "timer": "shape=octagon"}


def to_dot(
    picture: Picture,
    status: Mapping[str, str] | None = None,
    name: str = "graph",
    notes: Mapping[str, str] | None = None,
) -> str:
    """Draw a Graphviz digraph called `name`; the rest as for `to_mermaid`."""
    kinds = {node: kind for kind, names in _by_status(picture, status).items() for node in names}
    lines = [f"digraph {_dot_text(name)} {{", "    node [shape=box, style=rounded];"]
    lines += _dot_lines(picture, "", "", "    ", kinds, notes or {})
    return "\n".join([*lines, "}"]) + "\n"


def _dot_lines(
    picture: Picture, before: str, prefix: str, margin: str, kinds: Mapping[str, str], notes: Mapping[str, str]
) -> Iterator[str]:
    end = 'label="", shape={}, width=0.15' if before else 'label="{}", shape={}'
    yield f"{margin}{before}start [{end.format('circle') if before else end.format('start', 'circle')}];"
    for number, node in enumerate(picture.nodes):
        name, label = f"{before}n{number}", _dot_text("\n".join(_label(picture, node, prefix, notes)))
        face, border = COLOURS.get(kinds.get(name, ""), ("", ""))
        inner = picture.inner.get(node)
        if inner is None:
            shape = _DOT_SHAPES.get(_kind(picture, node), "")
            colours = f'style="rounded,filled", fillcolor="{face}", color="{border}"' if face else ""
            yield f"{margin}{name} [{', '.join(filter(None, (f'label={label}', shape, colours)))}];"
            continue
        yield f"{margin}subgraph cluster_{name} {{"
        yield f"{margin}    label={label};"
        # The frame has no face colour: it would be behind the nodes inside, which have a status of their own.
        yield f"{margin}    style=rounded;" + (f' color="{border}"; penwidth=2;' if border else "")
        yield from _dot_lines(inner, f"{name}_", inside(picture, node, prefix), f"{margin}    ", kinds, notes)
        yield f"{margin}}}"
    yield f"{margin}{before}finish [{end.format('doublecircle') if before else end.format('end', 'doublecircle')}];"
    if any(arrow.target is None for arrow in picture.arrows):
        yield f'{margin}{before}anywhere [label="any node", shape=hexagon];'
    sources, targets = _ends(picture, before)
    for arrow in picture.arrows:
        styles = [*(["dashed"] if arrow.is_conditional else []), *(["bold"] if arrow.is_branch else [])]
        options = [f'style="{",".join(styles)}"' if len(styles) > 1 else f"style={styles[0]}"] if styles else []
        options += [f"label={_dot_text(_short(arrow.label))}"] if arrow.label else []
        tail = f" [{', '.join(options)}]" if options else ""
        yield f"{margin}{sources[arrow.source]} -> {targets[arrow.target]}{tail};"


# -- what both need ------------------------------------------------------------------------------------------


def _ends(picture: Picture, before: str) -> tuple[dict[str | None, str], dict[str | None, str]]:
    """Return the names from which arrows leave and to which they lead: for an inner graph, those of its end and start."""
    sources: dict[str | None, str] = {START: f"{before}start", None: f"{before}anywhere"}
    targets: dict[str | None, str] = {END: f"{before}finish", None: f"{before}anywhere"}
    for number, node in enumerate(picture.nodes):
        name = f"{before}n{number}"
        sources[node] = f"{name}_finish" if node in picture.inner else name
        targets[node] = f"{name}_start" if node in picture.inner else name
    return sources, targets


def _kind(picture: Picture, node: str) -> str:
    return str(picture.kinds.get(node, {}).get("kind", "node"))


def inside(picture: Picture, node: str, prefix: str) -> str:
    """Return the prefix of the whole ids of the nodes inside a node."""
    return f"{prefix}{node}/*/" if _kind(picture, node) == "map" else f"{prefix}{node}/"


def _label(picture: Picture, node: str, prefix: str, notes: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of text on a node."""
    yield prefix + node
    kind = picture.kinds.get(node, {})
    match kind.get("kind"):
        case "map":
            yield "for each item"
        case "wait":
            yield f"waits for {_short(str(kind.get('signal')))}"
        case "timer":
            yield "timer"
    if prefix + node in notes:
        yield _short(notes[prefix + node], _LONGEST_NOTE)


def _by_status(picture: Picture, status: Mapping[str, str] | None) -> dict[str, list[str]]:
    """Return for each status the names of its nodes, in the order of drawing.

    Raises `OptionError` for another status.
    """
    known = drawn_statuses(picture, status or {})
    found: dict[str, list[str]] = {}
    if known:
        for name, node in _all_nodes(picture, "", ""):
            if node in known:
                found.setdefault(known[node], []).append(name)
    return found


def drawn_statuses(picture: Picture, status: Mapping[str, str]) -> dict[str, str]:
    """Return the status of each node that is drawn, by its whole id: of many items the first that is worth a look.

    Raises `OptionError` for a status that has no colour.
    """
    known: dict[str, str] = {}
    for node, kind in status.items():
        if kind not in COLOURS:
            raise OptionError(
                f"status of node {shown(node)} must be one of {', '.join(COLOURS)}, not {shown(kind)}", option="status"
            )
        drawn = _drawn(picture, node)
        if drawn is not None:
            known[drawn] = kind if drawn not in known else min(kind, known[drawn], key=_FIRST.index)
    return known


def _all_nodes(picture: Picture, before: str, prefix: str) -> Iterator[tuple[str, str]]:
    for number, node in enumerate(picture.nodes):
        name = f"{before}n{number}"
        yield name, prefix + node
        if node in picture.inner:
            yield from _all_nodes(picture.inner[node], f"{name}_", inside(picture, node, prefix))


def _drawn(picture: Picture, node_id: str) -> str | None:
    """Return the whole id under which a node is drawn: one for the same node of all items; None: it is not drawn."""
    node, slash, rest = node_id.partition("/")
    if not slash:
        return node_id
    inner = picture.inner.get(node)
    if inner is None:
        return None
    if _kind(picture, node) == "map":
        _, slash, rest = rest.partition("/")
        if not slash:
            return None
    below = _drawn(inner, rest)
    return None if below is None else inside(picture, node, "") + below


def _short(label: str, limit: int = _LONGEST_LABEL) -> str:
    text = " ".join(label.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _mermaid_text(text: str) -> str:
    # Mermaid reads #35; as a character. All characters that it might take for syntax are written in this form.
    return "".join(c if c.isalnum() or c in " _-.:,/…" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
