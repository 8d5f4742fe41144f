"""The console as an ASGI application: who may see a page, which page it is, and how it is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from milepost.console import answers, guard
from milepost.console.actions import ACTIONS
from milepost.console.bulk import find_batch, perform_batch
from milepost.console.handling import as_page_errors, make_download, make_page, perform_action
from milepost.console.page_errors import PageError
from milepost.console.routes import ACTION_PATHS, PAGES, Place, below, find_place, link, read_segments
from milepost.console.site import Asked, Site, User, Write, parse_fields
from milepost.console.veil import Veil
from milepost.engine.engine import Engine
from milepost.errors import OptionError, shown
from milepost.model.ids import new_nonce

if TYPE_CHECKING:
    from milepost.adapters.user_stores import AnyStore

_FRESH = 1.0
"""Seconds for which one look at a page serves all who ask for a part of it."""
NAVIGATION = (
    ("home", "Needs a person", ()),
    ("runs", "Runs", ("runs",)),
    ("waits", "Waits", ("waits",)),
    ("workers", "Workers", ("workers",)),
    ("flows", "Flows", ("flows",)),
    ("store", "Store", ("store",)),
)


def console(
    engine_or_store: Engine | AnyStore,
    *,
    user: User | None = None,
    write: Write | bool = False,
    base_path: str | None = None,
    allow_hosts: Collection[str] | None = None,
    hide: Sequence[str] = (),
    hide_errors: bool = False,
) -> Console:
    """Make the console of an engine, or of a store, as an ASGI application to be mounted in another one.

    `user(request)` says who asks; None lets nobody in (401). `write(user, action, run_id)` is asked at each action, and
    only True lets it pass; both may be async. The application that mounts the console lets people in. Without `user`
    only loopback hosts are served, unless `allow_hosts` names others. `base_path` is the prefix that a proxy takes off.
    `hide` are paths of values that are shown as `•••`: they begin with `state`, `inputs`, `output`, `items`, `prompt` or
    `payload`, and `*` stands for any one part. `hide_errors` shows only type and node of errors.

    Raises `OptionError` for `write` without `user`, and for values that make no sense.
    """
    if write is not False and user is None:
        raise OptionError("write needs user: an action is done by somebody", option="write")
    if isinstance(allow_hosts, str):
        raise OptionError(f"allow_hosts takes several names, not {shown(allow_hosts)}", option="allow_hosts")
    hosts = {"*"} if user is not None and allow_hosts is None else {host.lower() for host in allow_hosts or ()}
    engine = engine_or_store if isinstance(engine_or_store, Engine) else Engine(engine_or_store)
    return Console(
        make_site(engine, user=user, write=write, base_path=base_path, hide=hide, hide_errors=hide_errors), hosts
    )


def make_site(
    engine: Engine,
    *,
    user: User | None,
    write: Write | bool,
    base_path: str | None,
    hide: Sequence[str],
    hide_errors: bool,
    store_words: Sequence[str] = (),
) -> Site:
    """Check the options of a console. Raises `OptionError`."""
    if base_path is not None and (not base_path.startswith("/") or base_path.endswith("/")):
        raise OptionError(
            f"base_path begins with / and does not end with it, unlike {shown(base_path)}", option="base_path"
        )
    if not isinstance(write, bool) and not callable(write):
        raise OptionError(
            f"write is False, True or a function of (user, action, run_id), not {shown(write)}", option="write"
        )
    return Site(engine, user, write, base_path, Veil(hide, errors=hide_errors), tuple(store_words))


class Console:
    """The ASGI application. `access` is the way in of a console that stands alone."""

    def __init__(
        self,
        site: Site,
        hosts: Collection[str],
        *,
        access: guard.TokenAccess | None = None,
        takes_addresses: bool = False,
    ) -> None:
        self._site, self._hosts, self._access, self._takes_addresses = site, hosts, access, takes_addresses
        self._looks: dict[Any, _Look] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        answer = await self._answer(request)
        for name, value in guard.HEADERS.items():
            answer.headers.setdefault(name, value)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        base = quote(request.scope.get("root_path", "")) if self._site.base_path is None else self._site.base_path
        asked, place = Asked(base=base), None
        try:
            guard.check_host(request, self._hosts, takes_addresses=self._takes_addresses)
            guard.check_origin(request)
            segments, is_raw = read_segments(self._site.base_path, request.scope)
            if (file := _file_at(segments)) is not None:
                return file
            if (entered := self._enter(request, base)) is not None:
                return entered
            asked = Asked(user=await self._user_of(request), base=base, is_let_in=True)
            asked = replace(asked, query=parse_fields(request.url.query))
            is_page = request.method in guard.SAFE
            if not is_page and request.method != "POST":
                raise PageError(405, "Not so", "pages are asked for by GET, and actions are sent by POST")
            place = find_place(segments, PAGES if is_page else ACTION_PATHS)
            if place is None and find_place(segments, ACTION_PATHS if is_page else PAGES) is not None:
                raise PageError(405, "Not so", "this address only shows" if not is_page else "this address only acts")
            if place is None:
                raise _no_page(is_raw)
            asked = replace(asked, ids=place.ids)
            if place.name == "export" or (place.name == "record" and asked.text("download")):
                return answers.download(*await run_in_threadpool(make_download, self._site, place.name, asked))
            if is_page:
                page = await self._looked(place, asked)
            else:
                done = await self._act(request, place.name, asked)
                if not isinstance(done, answers.Page):
                    return self._went_well(request, place.name, done, asked)
                page = done
        except PageError as error:
            page = _page_of(error)
        return self._drawn(request, page, place, asked)

    async def _looked(self, place: Place, asked: Asked) -> answers.Page:
        """Make a page. Parts are asked for again and again: one look a second serves all who ask."""
        if "part" not in asked.query:
            return await run_in_threadpool(make_page, self._site, place.name, asked)
        query = {name: tuple(values) for name, values in asked.query.items() if name not in {"part", "mark"}}
        key = (place, *sorted(query.items()))
        for known in [known for known, look in self._looks.items() if look.is_old]:
            del self._looks[known]
        look = self._looks.setdefault(key, _Look())
        async with look.lock:
            if look.page is None:
                look.page = await run_in_threadpool(make_page, self._site, place.name, asked)
        return look.page

    async def _act(self, request: Request, name: str, asked: Asked) -> str | answers.Page:
        """Do an action. Return the run to look at then, or a page that says what was done or refused."""
        if self._site.is_read_only:
            raise PageError(403, "Read-only", "this console only shows: start it with --write, or give it write=")
        body = await guard.read_form(request)
        try:
            asked = replace(asked, query={}, form=parse_fields(body.decode()))
        except UnicodeDecodeError as exc:
            raise PageError(400, "Wrong form", "what was sent is no UTF-8") from exc
        if name == "bulk":
            return await self._act_on_many(asked)
        action = ACTIONS[name]
        for asked_about in action.names(asked):
            if not await self._may(asked.user, asked_about, asked.ids[0]):
                raise PageError(403, "Not allowed", f"{asked.user} may not {asked_about} run {asked.ids[0]!r}")
        return await run_in_threadpool(perform_action, self._site, name, asked)

    async def _act_on_many(self, asked: Asked) -> answers.Page:
        with as_page_errors(self._site):
            batch = await run_in_threadpool(find_batch, self._site, asked)
        for info in batch.runs:
            if not await self._may(asked.user, batch.action.name, info.run_id):
                batch.refused[info.run_id] = f"{asked.user} may not {batch.action.name} it"
        with as_page_errors(self._site):
            return await run_in_threadpool(perform_batch, self._site, asked, batch)

    async def _may(self, user: str | None, action: str, run_id: str) -> bool:
        write = self._site.write
        return write if isinstance(write, bool) else await _awaited(write(user, action, run_id)) is True

    def _went_well(self, request: Request, name: str, run_id: str, asked: Asked) -> Response:
        """Lead to the run that was acted on, or to the list if it is gone."""
        where = link(asked.base, "runs", *([run_id] if run_id else []))
        if wants_json(request):
            return Response(
                answers.to_json({"done": name, "run_id": run_id or asked.ids[0]}), media_type="application/json"
            )
        return RedirectResponse(where, 303)

    def _enter(self, request: Request, base: str) -> Response | None:
        """Let somebody in by the token of an address; None: he is in already. Raises `PageError` for anybody else."""
        access = self._access
        if access is None:
            return None
        query = parse_fields(request.url.query)
        tokens = query.pop("token", [])
        if tokens and request.method in guard.SAFE and access.takes(tokens[-1]):
            path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
            root, rest = self._site.base_path or "", f"?{urlencode(query, doseq=True)}" if query else ""
            # With two slashes at its beginning a path would lead to another host.
            answer = RedirectResponse(f"{root}/{below(path, root).lstrip('/')}{rest}", 303)
            answer.headers["set-cookie"] = access.cookie_header(base)
            return answer
        if not access.knows(request):
            raise PageError(
                401, "Who are you?", "open the address that was printed where the console was started: it lets you in"
            )
        return None

    async def _user_of(self, request: Request) -> str | None:
        if self._site.user is None:
            return None
        user = await _awaited(self._site.user(request))
        if not isinstance(user, str) or not user:
            raise PageError(
                401, "Who are you?", "the application that shows this console does not know you: log in there"
            )
        return user

    def _drawn(self, request: Request, page: answers.Page, place: Place | None, asked: Asked) -> Response:
        """Answer with a page, with its JSON, with a part of it, or with 204 for a part that has not changed."""
        if wants_json(request) or (place is not None and place.is_json):
            return Response(answers.to_json(page.values), page.status, media_type="application/json")
        mark = answers.mark_of(page.values)
        part = asked.query.get("part", [None])[0]
        if part is not None and page.status == 200 and asked.query.get("mark") == [mark]:
            return Response(status_code=204)
        query = {name: values for name, values in asked.query.items() if name not in {"part", "mark", "format"}}
        path = _path_of(place)
        around = {
            **answers.linking(asked.base),
            "base": asked.base,
            "mark": mark,
            "navigation": [
                {
                    "title": title,
                    "href": link(asked.base, *segments),
                    "is_current": place is not None and name == place.name,
                }
                for name, title, segments in NAVIGATION
            ],
            "page": None if place is None else place.name,
            "here": link(asked.base, *path),
            "again": link(asked.base, *path, **query)
            if request.method in guard.SAFE
            else link(asked.base, "runs", *asked.ids),
            "query": query,
            "store": {"place": self._site.store.place if asked.is_let_in else ""},
            "user": asked.user,
            "new_id": new_nonce(),
            "is_read_only": self._site.is_read_only,
        }
        text = answers.render(page, around, part=part)
        if text is None:
            page = _page_of(PageError(404, "No such part", f"this page has no part {part!r}"))
            text = answers.render(page, around)
        assert text is not None
        return Response(
            text.encode("utf-8", "backslashreplace"), page.status, headers={"Vary": "Accept"}, media_type="text/html"
        )


class _Look:
    """One look at a page, which is good for a second."""

    def __init__(self) -> None:
        self.lock, self.began = anyio.Lock(), monotonic()
        self.page: answers.Page | None = None

    @property
    def is_old(self) -> bool:
        """True if somebody who asks now gets another look."""
        return monotonic() - self.began >= _FRESH


def wants_json(request: Request) -> bool:
    """Return whether a request asks for the values of a page instead of the page."""
    if request.query_params.get("format") == "json":
        return True
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


_NOTHING_MORE: Mapping[str, Any] = {"run_id": "", "near": [], "is_temporary": False}


def _page_of(error: PageError) -> answers.Page:
    values = {"status": error.status, "title": error.title, "text": error.text, **_NOTHING_MORE, **error.more}
    return answers.Page("problem.html", error.title, values, error.status)


def _no_page(is_raw: bool) -> PageError:
    text = "there is nothing at this address"
    if not is_raw:
        text += "; this server tells no raw_path, so a run whose id has / in it can't be shown"
    return PageError(404, "No such page", text)


def _path_of(place: Place | None) -> tuple[str, ...]:
    """Return the segments of a page's path. The page that an answer gets is that of its run."""
    if place is None:
        return ()
    ids = iter(place.ids)
    tables = ((name, pattern) for table in (PAGES, ACTION_PATHS) for pattern, name in table.items())
    wanted = {"answer": "run"}.get(place.name, place.name)
    pattern = next((pattern for name, pattern in tables if name == wanted), ())
    return tuple(next(ids) if part == "*" else part for part in pattern)


def _file_at(segments: Sequence[str]) -> Response | None:
    """Return a file that browsers load; None: the path is none of a file. Files say nothing about the store."""
    if segments == ("favicon.ico",):
        return answers.static_answer("favicon.svg", None)
    if len(segments) == 3 and segments[0] == "static":
        file = answers.static_answer(segments[2], segments[1])
        if file is None:
            raise PageError(404, "No such file", "load the page again: the console is of another version now")
        return file
    return None


async def _awaited(answer: Any | Awaitable[Any]) -> Any:
    return await answer if isawaitable(answer) else answer


async def _live(receive: Receive, send: Send) -> None:
    """Say that nothing has to be begun or ended."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
