"""The buttons of a run: the actions that make sense for how it stands, and the commands that do the same."""

from __future__ import annotations

import shlex
from typing import Any

from milepost.console.site import Site
from milepost.model.info import RunInfo
from milepost.store import ACTIVE, GOES_ON
from milepost.views.text import clean

_BUTTONS: dict[str, tuple[str, str]] = {
    "retry": ("Retry", "requeue"),
    "requeue": ("Go on", "requeue"),
    "reopen": ("Reopen", "requeue --reopen"),
    "cancel": ("Cancel", "cancel"),
    "fork": ("Fork", "fork"),
    "delete": ("Delete", "delete"),
}
"""The label of each button, and the command that does the same."""
CONFIRMED = frozenset({"cancel", "delete"})
"""The actions with a page that asks first."""


def buttons_of(site: Site, info: RunInfo) -> list[dict[str, Any]]:
    """Return the buttons of a run. `kind` is post (a form without fields), or page (a link to a page with a form).

    Each has `action`, `label`, `kind`, and `command`, which does the same on the command line.
    """
    return [
        {
            "action": action,
            "label": _BUTTONS[action][0],
            "kind": "page" if action in CONFIRMED or action == "fork" else "post",
            "command": command_of(site, action, info.run_id),
        }
        for action in _actions(info)
    ]


def command_of(site: Site, action: str, run_id: str) -> str:
    """Return the command that does the same as a button."""
    verb = _BUTTONS[action][1].split()
    return clean(shlex.join(["milepost", verb[0], run_id, *verb[1:], *site.store_words]))


def _actions(info: RunInfo) -> list[str]:
    found = []
    if info.status == "failed":
        found.append("retry")
    if info.status == "interrupted" or (info.status == "blocked" and info.blocked_by in GOES_ON):
        found.append("requeue")
    if info.status == "cancelled" or (info.status == "blocked" and info.blocked_by not in GOES_ON):
        found.append("reopen")
    if info.status in ACTIVE:
        found.append("cancel")
    found.append("fork")
    if info.status != "running":
        found.append("delete")
    return found
