// What scripts add: they follow runs, and have keys. Links and forms work without.
const $ = (selector) => document.querySelector(selector), all = (selector) => [...document.querySelectorAll(selector)];

// The part #live asks for itself again. It gets 204 if nothing has moved.
const button = $("#follow");
let isOn = true, used = Date.now(), pause = 0;

function say(on, text) {
	isOn = on;
	button.textContent = text;
	button.setAttribute("aria-pressed", on);
}

async function ask(part) {
	const url = new URL(part.dataset.here + location.search, location);
	url.searchParams.set("part", "live");
	url.searchParams.set("mark", part.dataset.mark);
	const answer = await fetch(url, { headers: { Accept: "text/html" } }), text = await answer.text();
	if (!answer.ok) throw new Error(text);
	if (answer.status === 204 || !isOn) return;
	await htmx.swap({ sourceElement: part, target: part, swap: "outerMorph", text });
	select();
	dispatchEvent(new Event("console:swapped"));
}

async function follow() {
	const part = $("#live"), every = part.dataset.every * 1000;
	if (isOn && Date.now() - used > 600_000) say(false, "Stopped after 10 minutes: go on");
	if (isOn && !document.hidden) {
		try {
			await ask(part);
			if (pause) say(isOn, isOn ? "Live" : "Paused");
			pause = 0;
		} catch {
			pause = Math.min(2 * pause || every, 30_000);
			if (isOn) say(true, "No answer, trying again");
		}
	}
	setTimeout(follow, Math.max(every, pause));
}

if ($("#live[data-every]")) {
	button.onclick = () => say(!isOn, isOn ? "Paused" : "Live");
	for (const name of ["focus", "pointerdown", "keydown"]) addEventListener(name, () => (used = Date.now()));
	setTimeout(follow, 2000);
}

// #node=a/b chooses a node in graph, timeline and history, with what is inside it.
function select() {
	const chosen = location.hash.startsWith("#node=") && decodeURIComponent(location.hash.slice(6)).split("/");
	for (const row of all("[data-node]")) {
		const parts = row.dataset.node.split("/");
		row.classList.toggle("chosen", !!chosen && chosen.every((part, at) => part === "*" || part === parts[at]));
	}
}
addEventListener("hashchange", select);
select();

// Each key has a link, button or field that does the same.
function step(by) {
	const links = all("main tbody th a").filter((link) => link.offsetParent), at = links.indexOf(document.activeElement);
	links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}
const help = () => $("#keys").showModal();
const KEYS = { j: () => step(1), k: () => step(-1), "/": () => $("[role=search] input")?.focus(), "?": help };
for (const key of "d[]") KEYS[key] = () => $(`[data-key="${key}"]`)?.click();
addEventListener("keydown", (event) => {
	const { key, target } = event;
	if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog[open]") || !KEYS[key]) return;
	event.preventDefault();
	KEYS[key]();
});

addEventListener("click", async ({ target }) => {
	if (target.closest("[data-help]")) help();
	const copy = target.closest("[data-copy]");
	if (!copy) return;
	const source = $(copy.dataset.copy), text = copy.textContent;
	try {
		await navigator.clipboard.writeText(`${source.textContent}\n- ${new URL($("#live").dataset.here, location)}`);
		copy.textContent = "Copied";
		setTimeout(() => (copy.textContent = text), 1500);
	} catch {
		source.parentNode.open = true;
		getSelection().selectAllChildren(source);
	}
});
addEventListener("change", ({ target }) => {
	if (target.dataset.all) for (const box of all(target.dataset.all)) box.checked = target.checked;
});

// The button for the next 200 runs is pressed until somebody presses stop.
const next = $("form[data-next]");
if (next) {
	const timer = setTimeout(() => next.requestSubmit(), 1000), stop = document.createElement("button");
	Object.assign(stop, { type: "button", textContent: "Stop", onclick: () => (clearTimeout(timer), stop.remove()) });
	next.append(stop);
}
