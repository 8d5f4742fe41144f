// Draws #graph, the JSON of a graph, in #drawing. dagre lays it out once; when the run moves on, classes and texts change.
// A graph inside a node is laid out on its own: nothing of it lies over another one.
const START = "__start__", ANY = "", MOST = 150, NEAR = 3, HEAD = 30, DOT = { width: 14, height: 14 };
const SMALL = { [START]: DOT, __end__: DOT, [ANY]: { width: 74, height: 26 } };
const SIGNS = { done: "✓", running: "●", failed: "✕", waiting: "‖", next: "→" };
const pen = document.createElement("canvas").getContext("2d");
let shape = "", drawn = new Map(), scale = 1, showsAll = false;

const wide = (text, font) => {
	pen.font = `${font} system-ui, sans-serif`;
	return pen.measureText(text).width;
};
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const round = (number) => Math.round(number * 10) / 10;
const names = (...all) => all.filter(Boolean).join(" ");

function add(parent, tag, attributes, text = "") {
	const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value.toFixed ? round(value) : value);
	made.textContent = text;
	return parent.appendChild(made);
}

const count = ({ nodes }) => nodes.reduce((sum, { inner }) => sum + 1 + (inner ? count(inner) : 0), 0);
// A large graph is folded: first the graphs inside nodes, then what is not near to where the run is.
function visible(graph) {
	if (showsAll || count(graph) <= MOST) return graph;
	let nodes = graph.nodes.map(({ inner, ...node }) => node);
	if (nodes.length > MOST) {
		const near = new Set(nodes.filter(({ status }) => status && status !== "done").map(({ id }) => id));
		if (!near.size) near.add(START);
		for (let step = 0; step < NEAR; step++) {
			const edges = graph.edges.filter(({ source, target }) => near.has(source) || near.has(target));
			for (const { source, target } of edges) near.add(source).add(target);
		}
		nodes = nodes.filter(({ id }) => near.has(id));
	}
	return { nodes, edges: graph.edges };
}

function second({ counts, kind, signal }) {
	if (counts) return `${counts.done}/${counts.total}` + (counts.failed ? `, ${counts.failed} ✕` : "");
	return { map: "for each item", wait: `waits for ${cut(signal || "", 16)}`, timer: "timer" }[kind] || "";
}

function layout(graph) {
	const g = new dagre.graphlib.Graph({ multigraph: true });
	g.setGraph({ nodesep: 28, ranksep: 34, edgesep: 18, marginx: 12, marginy: 12 });
	for (const node of graph.nodes) {
		const inner = node.inner && layout(node.inner), name = cut(node.name, 28), below = second(node);
		const lines = [wide(name, "600 13px"), wide(below, "11px"), node.kind === "map" ? 90 : 0];
		const width = 44 + (inner ? Math.max(lines[0] + lines[1] + 8, inner.width - 44) : Math.max(...lines));
		g.setNode(node.id, { node, name, inner, width, height: inner ? inner.height + HEAD : below ? 50 : 36 });
	}
	graph.edges.forEach((edge, number) => {
		const ends = [edge.source, edge.target ?? ANY], label = cut(edge.label, 24);
		if (!ends.every((id) => SMALL[id] || g.hasNode(id))) return;
		for (const id of ends) if (SMALL[id] && !g.hasNode(id)) g.setNode(id, { ...SMALL[id] });
		const size = label ? { width: wide(label, "11px") + 10, height: 18 } : {};
		g.setEdge(...ends, { edge, label, labelpos: "c", ...size }, `${number}`);
	});
	dagre.layout(g);
	return { g, ...g.graph() };
}

function draw({ g, width }, parent, x, y, room) {
	const group = add(parent, "g", { transform: `translate(${x + Math.max(room - width, 0) / 2} ${y})` });
	for (const ends of g.edges()) drawEdge(g.edge(ends), ends, group);
	for (const id of g.nodes()) drawNode(id, g.node(id), group);
}

function drawEdge({ points, edge, label, x, y, width }, { v, w }, parent) {
	const at = points.map((point) => [round(point.x), round(point.y)]), [x2, y2] = at.at(-1), [x1, y1] = at.at(-2);
	const isBack = v === w || y2 <= at[0][1];
	const kinds = names("edge", edge.is_conditional && "conditional", edge.is_branch && "branch", isBack && "back");
	const group = add(parent, "g", { class: kinds, "data-ends": `${v} ${w}` });
	let path = `M${at[0]}`;
	for (let i = 1; i < at.length - 1; i++) path += `Q${at[i]} ${at[i].map((n, axis) => round((n + at[i + 1][axis]) / 2))}`;
	add(group, "path", { d: `${path}L${x2},${y2}` });
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
		const dot = add(parent, "g", { class: names("dot", id || "any"), "data-node": id });
		add(dot, "rect", { ...area, rx: height / 2 });
		if (!id) add(dot, "text", { x, y: y + 4 }, "any node");
		return;
	}
	const box = add(parent, "g", { "data-node": id });
	if (inner) add(box, "rect", { ...area, rx: 10, class: "frame" });
	const link = add(box, "a", { href: `#node=${encodeURIComponent(id)}` }), line = y0 + (height === 36 ? 23 : 20);
	add(link, "rect", { ...area, height: inner ? HEAD : height, rx: inner ? 10 : 8, class: "face" });
	const sign = add(link, "text", { x: x0 + 12, y: line, class: "sign" });
	add(link, "text", { x: x0 + 32, y: line, class: "name" }, name);
	const place = inner ? { x: x0 + 40 + wide(name, "600 13px"), y: line } : { x: x0 + 32, y: y0 + 39 };
	drawn.set(id, { box, link, sign, name, below: add(link, "text", { ...place, class: "second" }) });
	if (inner) draw(inner, parent, x0, y0 + HEAD, width);
}

function update({ nodes }) {
	for (const node of nodes) {
		const parts = drawn.get(node.id), sign = SIGNS[node.status], below = second(node);
		if (parts) {
			parts.box.setAttribute("class", names("node", `is-${node.kind}`, node.status, node.inner && "around"));
			parts.sign.textContent = sign || "";
			parts.below.textContent = below;
			parts.link.setAttribute("aria-label", names(sign, parts.name, below, `(${node.status || "not reached"})`));
		}
		if (node.inner) update(node.inner);
	}
}

function refresh(isAsked) {
	const graph = JSON.parse(document.getElementById("graph").textContent), shown = visible(graph);
	const now = JSON.stringify(shown, (name, value) => (/^(status|note|counts)$/.test(name) ? 0 : value));
	if (now !== shape || isAsked) build(document.getElementById("drawing"), graph, shown);
	shape = now;
	update(graph);
}

function build(box, graph, shown) {
	const laid = layout(shown), { width, height } = laid, all = count(graph);
	box.innerHTML = '<div class="tools"></div><div class="view"></div>';
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
			refresh(true);
			box.querySelector("button:last-child").focus();
		});
	}
	drawn = new Map();
	draw(laid, svg, 0, 0, 0);
	update(graph);
	zoom(Math.max(Math.min(1, (view.clientWidth - 2) / width), 0.5));
	const place = svg.querySelector(".failed, .running, .waiting, .next")?.getBoundingClientRect(), frame = view.getBoundingClientRect();
	if (place) view.scrollTo(place.x - frame.x - frame.width / 2, place.y - frame.y - frame.height / 2);
}

document.getElementById("visits")?.removeAttribute("open");
addEventListener("console:swapped", () => refresh());
refresh();
