"""A marked point of a workflow of steps, as step workflows' checkpoint stores hand it around.

It is what the asynchronous stores take and give. As JSON it has the five fields below; more may follow, and are passed
over by readers. A store keeps its own copy: nothing that it gives is shared with anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from milepost.errors import CheckpointCorruptError
from milepost.model.checkpoint import Checkpoint, _dump

__all__ = ["CheckpointData"]


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """The results of a workflow's steps up to a marked point.

    `checkpoint_id` is the step that marked it, `inputs_hash` what tells the workflow's inputs apart (by this library the
    first 16 hex digits of their digest), `step_results` one dict of plain JSON values a step, `saved_at` an aware datetime
    or its ISO text, which is kept as a datetime in UTC.
    Raises ValueError for an empty id or name, a hash that is no text, results that are no dicts, or a time without a zone.
    """

    checkpoint_id: str
    workflow_name: str
    inputs_hash: str
    step_results: tuple[dict[str, Any], ...]
    saved_at: datetime

    def __post_init__(self) -> None:
        for name in ("checkpoint_id", "workflow_name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be text and not empty, not {value!r}")
        if not isinstance(self.inputs_hash, str):
            raise ValueError(f"inputs_hash must be text, not {self.inputs_hash!r}")
        results = self.step_results
        if not isinstance(results, (tuple, list)) or not all(isinstance(result, dict) for result in results):
            raise ValueError(f"step_results must be a tuple of dicts, not {results!r:.200}")
        moment = self.saved_at
        if isinstance(moment, str):
            with suppress(ValueError):
                moment = datetime.fromisoformat(moment)
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ValueError(f"saved_at must be a datetime with a zone, not {moment!r}")
        object.__setattr__(self, "step_results", tuple(results))
        try:
            # A time in the hour that a zone has twice equals no time in another zone, not even itself read back.
            object.__setattr__(self, "saved_at", moment.astimezone(UTC))
        except OverflowError as exc:
            raise ValueError(f"saved_at is outside the years 1 to 9999 in UTC: {moment!r}") from exc

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values; `saved_at` as text in UTC, `2025-12-20T15:30:00Z`. The results are shared."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "workflow_name": self.workflow_name,
            "inputs_hash": self.inputs_hash,
            "step_results": list(self.step_results),
            "saved_at": self.saved_at.isoformat()[:-6] + "Z",
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> CheckpointData:
        """What `to_dict` gave; fields that are not known are passed over.

        Raises `CheckpointCorruptError`, a ValueError, where a field is missing or is not what it should be.
        """
        if not isinstance(fields, Mapping):
            raise CheckpointCorruptError(f"checkpoint is no JSON object but {type(fields).__name__}")
        names = ("checkpoint_id", "workflow_name", "inputs_hash", "step_results", "saved_at")
        missing = [name for name in names if name not in fields]
        if missing:
            raise CheckpointCorruptError(f"checkpoint has no {' and no '.join(missing)}", path=missing[0])
        try:
            return cls(**{name: fields[name] for name in names})
        except (TypeError, ValueError) as exc:
            raise CheckpointCorruptError(f"checkpoint holds what it should not: {exc}") from exc

    def encode(self, indent: int | None = None) -> bytes:
        """The fields as UTF-8 JSON, on one line or with `indent`.

        Raises `SerializeStateError` for a value that JSON would change, such as a tuple in a result.
        """
        text = _dump(self.to_dict(), "checkpoint")
        return text if indent is None else json.dumps(self.to_dict(), ensure_ascii=False, indent=indent).encode()

    @classmethod
    def decode(cls, data: bytes) -> CheckpointData:
        """Read what `encode` gave. Raises `DeserializeStateError`, a ValueError, for anything else."""
        found = Checkpoint.decode(data)
        if "workflow_name" not in found.extra:
            raise CheckpointCorruptError(f"checkpoint {found.node_id!r} is none of a workflow of steps")
        fields = {"checkpoint_id": found.node_id, "step_results": found.state, **found.extra}
        if found.timestamp is not None:
            fields["saved_at"] = found.timestamp.isoformat()
        return cls.from_dict(fields)
