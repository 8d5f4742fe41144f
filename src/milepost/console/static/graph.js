// Draws the JSON of #graph in #drawing: laid out once, then only texts change.
const START = "__start__", END = "__end__", ANY = "__any__", MOST = 150, NEAR = 3, HEAD = 30, BOLD = "600 13px", DOT = { width: 14, height: 14 };
const SMALL = { [START]: DOT, [END]: DOT, [ANY]: { width: 74, height: 26 } };
const SIGNS = { done: "✓", running: "●", failed: "✕", waiting: "‖", next: "→" };
const $ = (id) => document.getElementById(id);
const pen = document.createElement("canvas").getContext("2d");
let shape = "", drawn = new Map(), scale = 1, showsAll = false;

const wide = (text, font) => {
	pen.font = `${font} system-ui, sans-serif`;
	return pen.measureText(text).width;
};
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const round = (n) => Math.round(n * 10) / 10;
const names = (...all) => all.filter(Boolean).join(" ");

function add(parent, tag, values, text = "") {
	const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(values)) made.setAttribute(name, value.toFixed ? round(value) : value);
	made.textContent = text;
	return parent.appendChild(made);
}

const count = ({ nodes }) => nodes.reduce((sum, { inner }) => sum + 1 + (inner ? count(inner) : 0), 0);
// Large graphs are folded: inner graphs first, then all that is far.
function visible(graph) {
	if (showsAll || count(graph) <= MOST) return graph;
	let nodes = graph.nodes.map(({ inner, ...node }) => node);
	if (nodes.length > MOST) {
		const open = nodes.filter(({ status }) => status && status !== "done").map(({ id }) => id);
		const near = new Set(open.length ? open : [START]);
		for (let step = 0; step < NEAR; step++) {
			const edges = graph.edges.filter((e) => near.has(e.source) || (near.has(e.target) && e.target !== END));
			for (const e of edges) near.add(e.source).add(e.target);
		}
		nodes = nodes.filter(({ id }) => near.has(id));
	}
	return { nodes, edges: graph.edges };
}

function second({ counts: { done, failed, total } = {}, kind, signal }) {
	if (total !== undefined) return `${done}/${total}` + (failed ? `, ${failed} ✕` : "");
	return { map: "for each item", wait: `waits for ${cut(signal || "", 16)}`, timer: "timer" }[kind] || "";
}

function layout(graph) {
	const g = new dagre.graphlib.Graph({ multigraph: true });
	g.setGraph({ nodesep: 28, ranksep: 34, edgesep: 18, marginx: 12, marginy: 12 });
	for (const node of graph.nodes) {
		const inner = node.inner && layout(node.inner), name = cut(node.name, 28), below = second(node);
		const first = wide(name, BOLD), more = wide(below, "11px");
		const width = 44 + (inner ? Math.max(first + more + 8, inner.width - 44) : Math.max(first, more, node.kind === "map" ? 90 : 0));
		g.setNode(node.id, { node, name, inner, width, height: inner ? inner.height + HEAD : below ? 50 : 36 });
	}
	graph.edges.forEach((edge, n) => {
		const ends = [edge.source, edge.target ?? ANY], label = cut(edge.label, 24);
		if (!ends.every((id) => SMALL[id] || g.hasNode(id))) return;
		// Long edges take seconds.
		if (graph.nodes.length > MOST && ends[1] === END) ends[1] += " " + n;
		for (const id of ends) g.hasNode(id) || g.setNode(id, { ...(SMALL[id] ?? DOT) });
		const size = label ? { width: wide(label, "11px") + 10, height: 18 } : {};
		g.setEdge(...ends, { edge, label, labelpos: "c", ...size }, `${n}`);
	});
	dagre.layout(g);
	return { g, ...g.graph() };
}

function draw({ g, width }, parent, x, y, room) {
	const group = add(parent, "g", { transform: `translate(${x + Math.max(room - width, 0) / 2} ${y})` });
	for (const ends of g.edges()) drawEdge(g.edge(ends), ends, group, g.node(ends.v));
	for (const id of g.nodes()) drawNode(id, g.node(id), group);
}

function drawEdge({ points, edge, label, x, y, width }, { v, w }, parent, from) {
	const loop = [[0, -8], [24, -16], [24, 16], [0, 8]].map(([dx, y]) => ({ x: from.x + from.width / 2 + dx, y: from.y + y }));
	const at = (v === w ? loop : points).map(({ x, y }) => [round(x), round(y)]);
	const [x2, y2] = at.at(-1), [x1, y1] = at.at(-2), isBack = v === w || y2 <= at[0][1];
	const kinds = names("edge", edge.is_conditional && "conditional", edge.is_branch && "branch", isBack && "back");
	const group = add(parent, "g", { class: kinds, "data-ends": v + " " + w });
	const curves = at.slice(1, -1).map((here, i) => `Q${here} ${here.map((n, axis) => (n + at[i + 2][axis]) / 2)}`);
	add(group, "path", { d: `M${at[0]}${curves.join("")}L${x2},${y2}` });
	const long = Math.hypot(x2 - x1, y2 - y1) / 7 || 1, dx = (x2 - x1) / long, dy = (y2 - y1) / long;
	const head = [x2, y2, x2 - dx - dy / 2, y2 - dy + dx / 2, x2 - dx + dy / 2, y2 - dy - dx / 2];
	add(group, "polygon", { points: head.map(round) });
	if (!label) return;
	add(group, "rect", { x: x - width / 2, y: y - 9, width, height: 18, rx: 4 });
	add(group, "text", { x, y: y + 4 }, label);
}

function drawNode(id, { node, name, inner, x, y, width, height }, parent) {
	const x0 = x - width / 2, y0 = y - height / 2, area = { x: x0, y: y0, width, height };
	if (!node) {
		const dot = add(parent, "g", { class: `dot ${id}`, "data-node": id });
		add(dot, "rect", { ...area, rx: height / 2 });
		if (id === ANY) add(dot, "text", { x, y: y + 4 }, "any node");
		return;
	}
	const box = add(parent, "g", { "data-node": id });
	if (inner) add(box, "rect", { ...area, rx: 10, class: "frame" });
	const link = add(box, "a", { href: `#node=${encodeURIComponent(id)}` }), line = y0 + (height === 36 ? 23 : 20);
	add(link, "rect", { ...area, height: inner ? HEAD : height, rx: inner ? 10 : 8, class: "face" });
	const sign = add(link, "text", { x: x0 + 12, y: line, class: "sign" });
	add(link, "text", { x: x0 + 32, y: line, class: "name" }, name);
	link.append(" ");
	const at = inner ? { x: x0 + 40 + wide(name, BOLD), y: line } : { x: x0 + 32, y: y0 + 39 };
	drawn.set(id, { box, link, sign, name, below: add(link, "text", { ...at, class: "second" }) });
	if (inner) draw(inner, parent, x0, y0 + HEAD, width);
}

function update({ nodes }) {
	for (const node of nodes) {
		const parts = drawn.get(node.id), sign = SIGNS[node.status], below = second(node);
		if (parts) {
			parts.box.className.baseVal = names("node", `is-${node.kind}`, node.status, node.inner && "around");
			parts.sign.textContent = sign || "";
			parts.below.textContent = below;
			parts.link.ariaLabel = names(sign, parts.name, below, `(${node.status || "not reached"})`);
		}
		if (node.inner) update(node.inner);
	}
}

function refresh() {
	const graph = JSON.parse($("graph").textContent), shown = visible(graph);
	const now = JSON.stringify(shown, (name, value) => (/^(status|note|counts)$/.test(name) ? 0 : value));
	if (now !== shape) build($("drawing"), graph, shown);
	shape = now;
	update(graph);
}

function build(box, graph, shown) {
	const laid = layout(shown), { width, height } = laid, all = count(graph);
	box.innerHTML = '<p class="tools"><div class="view">';
	const [tools, view] = box.children;
	const svg = add(view, "svg", { role: "group", "aria-label": "Graph", viewBox: `0 0 ${width} ${height}` });
	const zoom = (to) => {
		scale = to;
		svg.setAttribute("width", width * scale);
		svg.setAttribute("height", height * scale);
	};
	const button = (textContent, onclick) => Object.assign(tools.appendChild(document.createElement("button")), { textContent, onclick });
	button("Smaller", () => zoom(scale / 1.25));
	button("Larger", () => zoom(scale * 1.25));
	if (all > MOST) {
		button(showsAll ? "Fold" : `Show all ${all} nodes`, () => {
			showsAll = !showsAll;
			refresh();
			box.querySelector("button:last-child").focus();
		});
	}
	drawn = new Map();
	draw(laid, svg, 0, 0, 0);
	update(graph);
	zoom(Math.max(Math.min(1, (view.clientWidth - 2) / width), 0.5));
	const at = [...svg.querySelectorAll(".failed, .running, .waiting, .next")].at(-1)?.getBoundingClientRect();
	const { x, y, width: w, height: h } = view.getBoundingClientRect();
	if (at) view.scrollTo(at.x - x - w / 2, at.y - y - h / 2);
}

$("visits")?.removeAttribute("open");
addEventListener("console:swapped", refresh);
refresh();
