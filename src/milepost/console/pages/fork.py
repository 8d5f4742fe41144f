"""The page that forks a run, the page of its plan, and the pages that ask before a run is cancelled or deleted."""

from __future__ import annotations

from typing import Any

from milepost.console.answers import Page
from milepost.console.buttons import command_of
from milepost.console.edits import digest_of, edited_text, find_points, point_of, read_edit, why_not
from milepost.console.page_errors import PageError
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.errors import CheckpointNotFoundError, DeserializeStateError
from milepost.model.ids import new_run_id
from milepost.verbs import flow_of
from milepost.views.rows import info_document
from milepost.views.states import RecordedState, StateMissingError, changes, patch_between
from milepost.views.text import clean


def show_fork(site: Site, asked: Asked) -> Page:
    """Show the form that copies a run up to a node, or, for a form that was sent with `check`, what its edit changes.

    `run_id`, `node`, `visit`, `sequence` (of the point; None: there is no state); `points` (`node_id`, `visit`, `sequence`);
    `can_edit`, `why_not` (a sentence, or ""); `state` (the text to edit), `shown` (the digest of that text as it was
    recorded: a form whose text still has it asks for no other state), `new_run_id`, `ready`; `hides` (True: hidden values are
    left out, and stay as recorded); `checked` (None, or `changes` with `sign` and `text`), `error` ("" or why the text is no
    state); `command`.
    """
    (run_id,) = asked.ids
    node, visit = asked.text("node"), asked.number("visit", 1)
    locked = missing_key(site.store, run_id)
    reason = locked or why_not(site, run_id)
    text, shown, sequence, hides, error = "", "", None, False, ""
    checked: list[dict[str, str]] | None = None
    if locked is None:
        try:
            point = point_of(site, run_id, node or None, visit)
            sequence, hides = point.sequence, bool(site.veil.hidden_places(point.state))
            found = "" if reason else edited_text(site, point.state)
            if found is None:
                reason = "the state is too large to be edited in a form: fork_run(state_override=) does it in code"
            else:
                text, shown = found, digest_of(found)
        except (StateMissingError, CheckpointNotFoundError, DeserializeStateError) as exc:
            reason = clean(exc)
    if asked.form and not reason:
        text = asked.text("state") or text
        try:
            edit = read_edit(site, asked)
            before, after = site.veil.state(edit.before), site.veil.state(edit.json)
            patch = patch_between(RecordedState(0, "", 0, before), RecordedState(0, "", 0, after))
            checked = [{"sign": sign, "text": change} for sign, change in changes(before, patch)]
        except PageError as exc:
            error = exc.text
    values: dict[str, Any] = {
        "run_id": run_id,
        "node": node,
        "visit": visit,
        "sequence": sequence,
        "points": find_points(site, run_id),
        "can_edit": not reason,
        "why_not": reason,
        "state": text,
        "shown": shown,
        "new_run_id": asked.text("new_run_id") or new_run_id(site.store.clock.time()),
        "ready": bool(asked.text("ready")),
        "hides": hides,
        "checked": checked,
        "error": error,
        "command": command_of(site, "fork", run_id),
    }
    return Page("fork.html", f"Fork {run_id}", values, 422 if error else 200)


def show_plan(site: Site, asked: Asked) -> Page:
    """Show what a resume would do by the code that the console has. A workflow's code is replayed for that.

    `run_id`, and `plan` as `ResumePlan.to_dict` gives it, without the texts that may quote what is hidden.
    """
    (run_id,) = asked.ids
    name = site.store.get_run(run_id).info.flow
    flow = site.engine.flows.get(name)
    if flow is None:
        known = ", ".join(site.engine.flows) or "no flow"
        raise PageError(
            409, "No code", f"a plan needs the code of flow {name!r}: start the console with --app; it knows {known}"
        )
    plan = site.engine.plan_resume(flow, run_id).to_dict()
    if site.veil.hides_errors or site.veil.hides_state:
        plan |= {"error": None, "reason": plan["verdict"]}
        if flow_of(flow).front == "workflow":
            plan["differences"] = []  # they quote the arguments of steps
    return Page("plan.html", f"Plan for {run_id}", {"run_id": run_id, "plan": plan})


def confirm_one(site: Site, asked: Asked, action: str) -> Page:
    """Ask before one run is acted on.

    `run` (its row), `deed` (`what`, `label`), `command`, `action` (the segments of the path to send the form to), `fields`
    (none), `runs`, `count`. A cancel takes a `reason`.
    """
    (run_id,) = asked.ids
    info = site.veil.info(site.store.get_run(run_id).info, missing_key(site.store, run_id))
    document = info_document(info)
    document.pop("error", None)
    values = {
        "run": document,
        "deed": {"what": action, "label": action.capitalize()},
        "runs": [],
        "count": "1",
        "command": command_of(site, action, run_id),
        "fields": [],
        "action": ["runs", run_id, action],
    }
    return Page("confirm.html", f"{action.capitalize()} {run_id}?", values)
