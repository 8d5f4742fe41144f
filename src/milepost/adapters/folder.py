"""A store in a folder where marked points are JSON files beside the journals.

Of a workflow that an engine runs here only the newest marked point has a file, so that a run takes no more room than
its journal does. Files of direct saves stay. Another program may have left a run as files without a journal. When a
verb of the store first reads such a run, its files become saves from outside, by their time, then name.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from milepost.adapters.outside import LooksOutside
from milepost.adapters.point_files import PointFiles
from milepost.adapters.points import is_marked, marked_of
from milepost.errors import CheckpointNotFoundError, MilepostError, RunNotFoundError
from milepost.model.record import CHECKPOINT, Record
from milepost.store import Append, Claim, Claimed, Verdict
from milepost.stores.base.fence import Row, intruded
from milepost.stores.base.transaction import Transaction, note_of
from milepost.stores.file.store import FileStore

__all__ = ["FolderStore"]

logger = logging.getLogger("milepost")


class FolderStore(LooksOutside, FileStore):
    """The store below a `FileCheckpointStore`, in the folder `base`."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.points = PointFiles(base, self._files)

    def has(self, run_id: str) -> bool:
        """Return whether the run has a journal."""
        with self._reading("get_run") as tx:
            return tx.row(run_id) is not None

    def journaled(self, run_id: str, node_id: str) -> bytes | None:
        """Return what `load` returns, from the journal alone; None if there is no such checkpoint."""
        try:
            return FileStore.load(self, run_id, node_id)
        except CheckpointNotFoundError:
            return None

    # -- the file of the newest marked point -----------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        verdicts = super().append(batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict.outcome == "written" and any(map(is_marked, append.records)):
                self._show_newest(append.token.run_id)
        return verdicts

    def claim(self, claim: Claim) -> Claimed:
        claimed = super().claim(claim)
        if claimed.token is not None and claim.live is not None:
            self._show_newest(claim.run_id)  # the point that has a file may be superseded now
        return claimed

    def _show_newest(self, run_id: str) -> None:
        """Write a file for the newest point that the run itself marked, and remove those of its older ones.

        The journal has the point, so a file that cannot be written stops nothing.
        """
        try:
            marked = marked_of(self, run_id)
            if marked is None:
                return
            own = [step_id for step_id, mark in marked.marks.items() if not mark.is_foreign]
            if own:
                self.points.write(run_id, marked.point(marked.marks[own[-1]]))
            self.points.remove_all(run_id, marked.own - marked.saved - {*own[-1:]})
        except MilepostError as exc:
            logger.warning(
                "the newest marked point of run %r has no file in %s: %s; the journal has it",
                run_id,
                self.place,
                exc,
                extra={"run_id": run_id},
            )

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        with suppress(RunNotFoundError):
            if force or self.get_run(run_id).lease not in {"live", "ours"}:
                # Remove the files first: if the process died half-way, files without a journal would bring the run back.
                self.points.clear(run_id)
        super().delete_run(run_id, force=force)

    def _forget(self, run_id: str, wish: Any) -> bool:
        if not wish.is_dry:
            self.points.clear(run_id)
        return super()._forget(run_id, wish)

    # -- what other programs left ----------------------------------------------------------------------

    def _look(self, run_id: str) -> None:
        if self.has(run_id):
            return
        points = self.points.read_all(run_id)
        if not points:
            return

        def body(tx: Transaction) -> None:
            if tx.row(run_id) is not None:
                return  # somebody else was faster
            flow = points[-1].workflow_name
            moment = points[0].saved_at.timestamp()
            row = Row(run_id, flow, "interrupted", created_at=moment, updated_at=moment, epoch=0)
            tx.add_row(row)
            sequence = 0
            for point in points:
                # One number for each of its results: a replay turns them into records.
                sequence = max(sequence + 1, len(point.step_results))
                data, moment = point.encode(), point.saved_at.timestamp()
                visit = tx.last_visit(run_id, point.checkpoint_id) + 1
                record = Record(sequence, CHECKPOINT, point.checkpoint_id, visit, len(data), None, data)
                row = intruded(row, sequence, moment)
                tx.insert(run_id, (record,), note_of(run_id, record, moment))
            # Skipped numbers were never in this journal, nor was the start record of a flow that is known.
            tx.put_row(replace(row, pruned=sequence - len(points) + 1))

        self._change("save", body)
