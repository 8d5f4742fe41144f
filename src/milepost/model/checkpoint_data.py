"""A marked point of a workflow of steps, as the checkpoint stores of step workflows exchange it.

The asynchronous stores take and give these values. The JSON has the five fields below; more may be there, and readers
ignore them. A store keeps a copy of its own: it shares nothing that it gives with anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from milepost.errors import CheckpointCorruptError, shown
from milepost.model.checkpoint import Checkpoint, _dump


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """The results of a workflow's steps up to a marked point.

    `checkpoint_id` is the step that marked the point. `inputs_hash` identifies the workflow's inputs (this library
    takes the first 16 hex digits of their digest). `step_results` has one dict of plain JSON values for each step.
    `saved_at` is an aware datetime or its ISO text, and is kept as a datetime in UTC. Raises ValueError for an empty id
    or name, a hash that is no text, results that are no dicts, or a time without a zone.
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
                raise ValueError(f"{name} must be text and not empty, not {shown(value)}")
        if not isinstance(self.inputs_hash, str):
            raise ValueError(f"inputs_hash must be text, not {shown(self.inputs_hash)}")
        results = self.step_results
        if not isinstance(results, (tuple, list)) or not all(isinstance(result, dict) for result in results):
            raise ValueError(f"step_results must be a tuple of dicts, not {results!r:.200}")
        moment = self.saved_at
        if isinstance(moment, str):
            with suppress(ValueError):
                moment = datetime.fromisoformat(moment)
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ValueError(f"saved_at must be a datetime with a zone, not {shown(moment)}")
        object.__setattr__(self, "step_results", tuple(results))
        try:
            # In the hour that a zone has twice, a time equals no time of another zone, not even itself when read back.
            object.__setattr__(self, "saved_at", moment.astimezone(UTC))
        except OverflowError as exc:
            raise ValueError(f"saved_at is outside the years 1 to 9999 in UTC: {shown(moment)}") from exc

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values; the results are shared.

        `saved_at` is text in UTC, such as `2025-12-20T15:30:00Z`.
        """
        return {
            "checkpoint_id": self.checkpoint_id,
            "workflow_name": self.workflow_name,
            "inputs_hash": self.inputs_hash,
            "step_results": list(self.step_results),
            "saved_at": self.saved_at.isoformat()[:-6] + "Z",
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> CheckpointData:
        """Read the dict that `to_dict` gave; ignore unknown fields.

        Raises `CheckpointCorruptError`, a ValueError, if a field is missing or is not of its kind.
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
        """Return the fields as UTF-8 JSON, on one line or with `indent`.

        Raises `SerializeStateError` for a value that JSON would change, such as a tuple in a result.
        """
        text = _dump(self.to_dict(), "checkpoint")
        return text if indent is None else json.dumps(self.to_dict(), ensure_ascii=False, indent=indent).encode()

    @classmethod
    def decode(cls, data: bytes) -> CheckpointData:
        """Read the bytes that `encode` gave. Raises `DeserializeStateError`, a ValueError, for anything else."""
        checkpoint = Checkpoint.decode(data)
        if "workflow_name" not in checkpoint.extra:
            raise CheckpointCorruptError(f"checkpoint {checkpoint.node_id!r} is none of a workflow of steps")
        fields = {"checkpoint_id": checkpoint.node_id, "step_results": checkpoint.state, **checkpoint.extra}
        if checkpoint.timestamp is not None:
            fields["saved_at"] = checkpoint.timestamp.isoformat()
        return cls.from_dict(fields)
