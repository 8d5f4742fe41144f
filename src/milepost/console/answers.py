"""The answers of the console: pages from templates, the same values as JSON, and files that never change."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from starlette.responses import Response

from milepost.console.routes import link
from milepost.errors import escaped
from milepost.model.tracebacks import fold_frames
from milepost.views.text import ago, attempt_of, duration, short, size

_FOLDER = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".png": "image/png"}
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Control characters, ends of lines, characters without a shape, and those that turn the direction of writing. Spaces of all
kinds and the joiners that scripts and emoji need are none of them."""
_TAG_OR_UNSEEN = re.compile(rf"<textarea.*?</textarea>|<[^>]*>|{_UNSEEN.pattern}", re.DOTALL)
FOR_EVER = "public, max-age=31536000, immutable"


class Page(NamedTuple):
    """A page before it is drawn: its template, its title, and its values, which are its JSON too."""

    template: str
    title: str
    values: Mapping[str, Any]
    status: int = 200


class StaticFile(NamedTuple):
    """A file of `static/` with the digest that stands in its address."""

    data: bytes
    digest: str
    type: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Read the files that browsers load, by name."""
    found = {}
    for path in sorted((_FOLDER / "static").iterdir()):
        if path.suffix in _TYPES:
            data = path.read_bytes()
            found[path.name] = StaticFile(data, hashlib.sha256(data).hexdigest()[:16], _TYPES[path.suffix])
    return found


def static_answer(name: str, digest: str | None) -> Response | None:
    """Return a file for the digest in its address; None: there is no such file. Without a digest it is asked for again."""
    file = static_files().get(name)
    if file is None or digest not in {None, file.digest}:
        return None
    return Response(file.data, media_type=file.type, headers={} if digest is None else {"Cache-Control": FOR_EVER})


@cache
def environment() -> jinja2.Environment:
    """Make the environment of the templates. Everything is escaped, and a name that is not there is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "duration": duration,
        "attempt_of": attempt_of,
        "folded": fold_frames,
        "pretty": pretty,
        "short": short,
        "size": size,
        "when": lambda text: ago(datetime.fromisoformat(text)),
    }
    made.globals["parts"] = made.get_template("_parts.html").module
    return made


def pretty(value: Any) -> str:
    """Return JSON on several lines. What can't be seen, or would hide other text, is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def to_json(value: Any) -> bytes:
    """Return a page's values as JSON."""
    return (pretty(value) + "\n").encode()


def mark_of(values: Mapping[str, Any]) -> str:
    """Return a digest of a page's values: a page whose mark is the same has not changed."""
    return hashlib.sha256(to_json(values)).hexdigest()[:16]


def render(page: Page, around: Mapping[str, Any], *, part: str | None = None) -> str | None:
    """Draw a page, or only the block `part` of its template; None: it has no such block.

    `around` are the values that every page has.
    """
    template = environment().get_template(page.template)
    values = {**around, "title": page.title, **page.values}
    if part is None:
        return _readable(template.render(values))
    block = template.blocks.get(part)
    return None if block is None else _readable("".join(block(template.new_context(values))))


def _readable(page: str) -> str:
    """Return HTML whose texts have escapes for what can't be seen, or would hide other text.

    Tags and texts that people edit stay as they are: a form sends back what it was given.
    """
    if _UNSEEN.search(page) is None:
        return page
    return _TAG_OR_UNSEEN.sub(lambda found: found[0] if found[0].startswith("<") else escaped(found[0]), page)


def linking(base: str) -> dict[str, Callable[..., str]]:
    """Return the functions with which templates name addresses: of pages, and of static files."""

    def static(name: str) -> str:
        return link(base, "static", static_files()[name].digest, name)

    return {"link": partial(link, base), "static": static}


def download(name: str, data: bytes) -> Response:
    """Return a file to be saved, which no browser shows as a page."""
    return Response(data, media_type="text/plain", headers={"Content-Disposition": f'attachment; filename="{name}"'})
