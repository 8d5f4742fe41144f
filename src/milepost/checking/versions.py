"""The versions of flows that open runs began with: an old branch of the code may go once no run needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from milepost.checking.runs import OPEN, raise_unless_of_one_run
from milepost.drivers import SyncDriver
from milepost.engine.engine import Engine
from milepost.engine.matching import walk
from milepost.errors import DeserializeStateError, RunNotFoundError, StoreError
from milepost.executor.effects import Routine
from milepost.executor.journal import read_start
from milepost.model.info import RunInfo
from milepost.views.text import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowVersion:
    """A version of a flow, with the open runs that began with it."""

    flow: str
    version: int | None
    """`ctx.version` of these runs; None if no code has begun them yet, or they can't be read."""
    fingerprint: str
    """The fingerprint of the flow at their beginning; "" as for `version`."""
    is_current: bool | None
    """True if the engine's flow has this fingerprint; None if it does not have the flow, or nothing is known of the runs."""
    runs: int
    oldest: datetime
    """The time at which the first of these runs was created."""
    example: str
    """The id of that run."""
    problem: str = ""
    """The reason why these runs can't be read; "" if they can."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as plain ones."""
        return {name: getattr(self, name) for name in self.__slots__} | {"oldest": iso(self.oldest)}


def versions(
    engine: Engine,
    *,
    status: str | Iterable[str] | None = None,
    flow: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[FlowVersion, ...]:
    """Return the versions of flows that open runs began with, by flow and version. Every run is read.

    The arguments say which runs are meant, as those of `check`.
    """
    flows, store, found = engine._known(), engine.store, dict[tuple[str, int | None, str, bool], FlowVersion]()

    def visit(info: RunInfo) -> Routine[None]:
        version, fingerprint, problem = None, "", ""
        try:
            begun = yield from read_start(store, info.run_id, lambda record: store.seals.check(info.run_id, record))
            if begun is not None and begun.fields().get("fingerprint"):
                fields = begun.fields()
                version, fingerprint = int(fields.get("flow_version") or 1), str(fields["fingerprint"])
        except RunNotFoundError:
            return
        except (StoreError, DeserializeStateError) as exc:
            raise_unless_of_one_run(exc)
            problem = str(exc)
        known, key = flows.get(info.flow), (info.flow, version, fingerprint, bool(problem))
        before = found.get(key)
        # The list goes from the newest run to the oldest.
        found[key] = FlowVersion(
            flow=info.flow,
            version=version,
            fingerprint=fingerprint,
            is_current=None if known is None or not fingerprint else known.fingerprint == fingerprint,
            runs=1 + (0 if before is None else before.runs),
            oldest=info.created_at,
            example=info.run_id,
            problem=problem,
        )

    SyncDriver(engine._options.clock).run(walk(store, visit, OPEN, flow=flow, status=status, tags=tags))
    return tuple(sorted(found.values(), key=lambda one: (one.flow, one.version or 0, one.fingerprint)))
