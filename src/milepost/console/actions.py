"""The actions of the console: each is one verb of the engine, done for somebody who may do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from milepost.console.edits import has_edit, read_edit
from milepost.console.forms import PREFIX, read_json, read_payload
from milepost.console.page_errors import AnswerRefusedError, PageError
from milepost.console.pages.runs import read_time
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.drivers import SyncDriver
from milepost.errors import SignalRefusedError
from milepost.model.ids import SYSTEM, new_run_id
from milepost.model.info import Wait
from milepost.views.text import clean


class ActionHandler(NamedTuple):
    """The handler of an action: the names that `write` is asked about, and the function that does it.

    The function returns the run to look at then, "" for none.
    """

    names: Callable[[Asked], Sequence[str]]
    act: Callable[[Site, Asked], str]


def _requeue(site: Site, asked: Asked, **options: Any) -> str:
    (run_id,) = asked.ids
    at = read_time("at", asked.text("at")) if asked.text("at") else None
    site.engine.requeue(run_id, at=at, by=asked.user, **options)
    return run_id


def _cancel(site: Site, asked: Asked) -> str:
    (run_id,) = asked.ids
    site.engine.cancel(run_id, asked.text("reason"), by=asked.user)
    return run_id


def _delete(site: Site, asked: Asked) -> str:
    site.engine.delete_run(*asked.ids)
    return ""


def _answer(site: Site, asked: Asked) -> str:
    (run_id,) = asked.ids
    signal_id = asked.text("signal_id") or None
    if _is_sent(site, run_id, signal_id, asked.text("wait")):
        return run_id  # the form was sent twice
    wait = find_wait(site, run_id, asked.text("wait"))
    if "payload" in asked.form:
        try:
            payload = read_json(asked.text("payload") or "null")
        except ValueError as exc:
            raise AnswerRefusedError(wait.wait_id, str(exc), {"payload": str(exc)}) from exc
    else:
        payload, errors = read_payload(wait.schema, asked.form)
        if errors:
            raise AnswerRefusedError(wait.wait_id, "the answer was not sent", errors)
    try:
        outcome = site.engine.signal(
            run_id, str(wait.signal), payload, signal_id=signal_id, to=wait.wait_id, by=asked.user
        )
    except SignalRefusedError as exc:
        raise AnswerRefusedError(wait.wait_id, clean(exc), _field_errors(exc)) from exc
    if outcome == "duplicate" and not _is_sent(site, run_id, signal_id, wait.wait_id):
        raise PageError(
            409, "It was refused", f"signal_id {signal_id!r} was used for another wait: load the page again"
        )
    return run_id


def _is_sent(site: Site, run_id: str, signal_id: str | None, wait_id: str) -> bool:
    """Return whether an answer with this `signal_id` was sent to this wait before."""
    if signal_id is None or missing_key(site.store, run_id) is not None:
        return False
    return any((sent.signal_id, sent.to) == (signal_id, wait_id) for sent in site.store.signals(run_id))


def find_wait(site: Site, run_id: str, wait_id: str) -> Wait:
    """Return an open wait for a signal. Raises `PageError` if there is none, or if it can't be proven here."""
    locked = missing_key(site.store, run_id)
    if locked is not None:
        raise PageError(409, "It was refused", locked)
    for wait in site.store.get_run(run_id).info.waiting_for:
        if wait.wait_id == wait_id and wait.signal is not None:
            return wait
    raise PageError(
        409, "It was refused", f"run {run_id!r} does not wait at {wait_id!r}: it may have been answered meanwhile"
    )


def _field_errors(exc: SignalRefusedError) -> dict[str, str]:
    """Return the error at the input that it names, as far as it names one."""
    _, is_there, path = str(exc).partition("payload.")
    name = path.split(" ", 1)[0].rstrip(":,").replace(".", "/")
    return {PREFIX + name: clean(exc)} if is_there else {}


def _fork(site: Site, asked: Asked) -> str:
    (run_id,) = asked.ids
    node_id, visit = asked.text("node") or None, asked.number("visit", 1)
    name = asked.text("new_run_id") or new_run_id(site.store.clock.time())
    is_ready = bool(asked.text("ready"))
    handle = site.engine.handle(run_id)
    if not has_edit(asked):
        return SyncDriver(SYSTEM).run(handle._forked(node_id, visit, name, ready=is_ready, by=asked.user))
    edit = read_edit(site, asked)
    return handle.fork_run(
        node_id, visit, new_run_id=name, state_override=lambda _: edit.state, ready=is_ready, by=asked.user
    )


def _names_of_fork(asked: Asked) -> Sequence[str]:
    names = ["fork", *(["override"] if has_edit(asked) else []), *(["requeue"] if asked.text("ready") else [])]
    return tuple(names)


ACTIONS: Mapping[str, ActionHandler] = {
    "retry": ActionHandler(lambda _: ("requeue",), partial(_requeue, retry=True)),
    "requeue": ActionHandler(lambda _: ("requeue",), _requeue),
    "reopen": ActionHandler(lambda _: ("requeue",), partial(_requeue, reopen=True)),
    "cancel": ActionHandler(lambda _: ("cancel",), _cancel),
    "answer": ActionHandler(lambda _: ("signal",), _answer),
    "fork": ActionHandler(_names_of_fork, _fork),
    "delete": ActionHandler(lambda _: ("delete",), _delete),
}
"""The actions on one run, by the last part of their path."""
