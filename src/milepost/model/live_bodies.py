"""Bodies of live events: JSON of what an event says, made where it is emitted and read where it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from milepost.model.events import Emitted, NodeOverdue, Progress, UnrecordedEvent
from milepost.model.live import LiveEvent
from milepost.model.record import NOT_JSON

LARGEST_DATA = 256_000
"""Size in bytes of the largest data that is carried to readers elsewhere."""
_LONGEST_TEXT = 10_000

_KINDS: dict[str, type[UnrecordedEvent]] = {kind.__name__: kind for kind in (Emitted, Progress, NodeOverdue)}


def body_of(kind: type[UnrecordedEvent], said: Mapping[str, Any]) -> bytes:
    """Return as JSON what an event of this kind says. What the caller changes later does not change it.

    Data that cannot be carried is left out; `omitted` says why.
    """
    told = {"event": kind.__name__, **said}
    data = told.get("data")
    if type(data) is not str or len(data) <= _LONGEST_TEXT:
        try:
            body = _encode(told)
        except Exception:  # it may come from the data's own code
            return _body_of_parts(told)
        if len(body) <= _LONGEST_TEXT:  # so no text in it is longer
            return body
    return _body_of_parts(told)


def _body_of_parts(told: dict[str, Any]) -> bytes:
    """Return the JSON of an event that is large or no JSON: each part of it is cut or left out by itself."""
    told |= {key: _text(told[key]) for key in ("name", "message") if key in told}
    try:
        if "data" in told:
            told |= _carried(told.pop("data"))
        return _encode(told)
    except (TypeError, ValueError, OverflowError) as exc:
        omitted = _text(f"it is no JSON: {exc}")
        return _encode({"event": "Emitted", "name": told.get("name", "progress"), "omitted": omitted})


def _carried(data: Any) -> dict[str, Any]:
    """Return the encoded data, or the reason why it is left out, by the name of its field."""
    encoded, size = b"", len(data) if type(data) is str else 0
    if size <= LARGEST_DATA:
        try:
            encoded = _encode(data)
        except Exception as exc:  # it may come from the data's own code
            return {"omitted": _text(f"it is no JSON: {str(exc) or type(exc).__name__}"[:500])}
        size = len(encoded)
    if size > LARGEST_DATA:
        return {"omitted": f"it is too large: {size} bytes, and at most {LARGEST_DATA} are carried"}
    return {"data": msgspec.Raw(encoded)}


def _plain(value: Any) -> Any:
    """Turn a value that msgspec does not know into one that it does."""
    dump = getattr(value, "model_dump", None)  # of pydantic
    if callable(dump) and not isinstance(value, type):
        return dump()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} cannot be encoded")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _text(text: Any) -> str:
    """Return a text that JSON can hold, not longer than a message may be."""
    return str(text)[:_LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def event_of(run_id: str, live: LiveEvent, sequence: int) -> UnrecordedEvent | None:
    """Return the event of a stored form, which follows record `sequence`; None if this release cannot read it."""
    try:
        told = _decode(live.body)
        return _KINDS[told.pop("event")](
            run_id=run_id,
            timestamp=live.time,
            sequence=sequence,
            node_id=live.node_id,
            visit=live.visit,
            attempt=live.attempt,
            epoch=live.epoch,
            number=live.number,
            **told,
        )
    except (*NOT_JSON, KeyError, TypeError):
        return None
