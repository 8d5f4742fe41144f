"""Marked points as JSON files, one for each point: `{base}/{run id}/{checkpoint id}.json`.

The files are for people. The journal beside them is what counts; only a run without a journal is read from its files. A
file is put in its place whole or not at all, and survives a loss of power.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from milepost.errors import CheckpointCorruptError, DeserializeStateError, StoreError
from milepost.model.checkpoint_data import CheckpointData
from milepost.stores.base.folders import make_folder, sync_folder
from milepost.stores.file.fs import Files
from milepost.stores.file.paths import below, place_of

__all__ = ["PointFiles"]

_SUFFIX = ".json"


class PointFiles:
    """The files of all runs below `base`, written through `files`. Raises `StoreError` if the disk fails."""

    def __init__(self, base: Path, files: Files) -> None:
        self.base = base
        self._files = files

    def write(self, run_id: str, point: CheckpointData) -> bool:
        """Write the file of `point`, in place of the old one. Return False if the run's folder was removed meanwhile."""
        data = point.encode(indent=2)
        folder = self._folder(run_id)
        with self.failing_as("save"):
            if make_folder(str(folder)):
                sync_folder(str(self.base))
            made = self._files.write(data)
            try:
                os.replace(made, self._file(run_id, point.checkpoint_id))
            except FileNotFoundError:
                self._files.discard(made)
                return False
            except BaseException:
                self._files.discard(made)
                raise
            sync_folder(str(folder))
        return True

    def read(self, run_id: str, checkpoint_id: str) -> CheckpointData | None:
        """Read the point from its file; None if it has none. Raise `CheckpointCorruptError` if
        the file holds no such point."""
        # Another program names its files by the ids themselves. The folder is listed because some file systems also
        # find a file under other names.
        for path in self._paths(run_id):
            if path.name in _names(checkpoint_id):
                return self._parsed(path)
        return None

    def read_all(self, run_id: str) -> list[CheckpointData]:
        """Read all points of a run that have files, by `saved_at`, then name. Raise
        `CheckpointCorruptError` as `read` does."""
        points = [(path.name, self._parsed(path)) for path in self._paths(run_id)]
        found = [(point.saved_at, name, point) for name, point in points if point is not None]
        return [point for _, _, point in sorted(found, key=lambda entry: entry[:2])]

    def has_any(self, run_id: str) -> bool:
        """Return whether a run has files."""
        return any(True for _ in self._paths(run_id))

    def remove(self, run_id: str, checkpoint_id: str) -> None:
        """Remove a point's file, and the run's folder once it is empty. A missing file is no error."""
        with self.failing_as("save"):
            self._file(run_id, checkpoint_id).unlink(missing_ok=True)
            self._leave(run_id)

    def remove_all(self, run_id: str, checkpoint_ids: Collection[str]) -> None:
        """Remove the files of these points. Missing files are no error."""
        names = {place_of(checkpoint_id) + _SUFFIX for checkpoint_id in checkpoint_ids}
        with self.failing_as("save"):
            for path in self._paths(run_id):
                if path.name in names:
                    path.unlink(missing_ok=True)

    def clear(self, run_id: str) -> None:
        """Remove all files of a run, and its folder once it is empty."""
        with self.failing_as("clear"):
            for path in self._paths(run_id):
                path.unlink(missing_ok=True)
            self._leave(run_id)

    # -- below ---------------------------------------------------------------------------------------

    def _folder(self, run_id: str) -> Path:
        return below(self.base, place_of(run_id))

    def _file(self, run_id: str, checkpoint_id: str) -> Path:
        return below(self.base, place_of(run_id), place_of(checkpoint_id) + _SUFFIX)

    def _leave(self, run_id: str) -> None:
        # A journal, if there is one, is in the folder.
        with suppress(OSError):
            self._folder(run_id).rmdir()
            sync_folder(str(self.base))

    def _paths(self, run_id: str) -> list[Path]:
        with self.failing_as("list"):
            try:
                with os.scandir(self._folder(run_id)) as entries:
                    return sorted(Path(e.path) for e in entries if e.name.endswith(_SUFFIX) and e.is_file())
            except FileNotFoundError:
                return []

    def _parsed(self, path: Path) -> CheckpointData | None:
        with self.failing_as("load"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            point = CheckpointData.decode(data)
        except DeserializeStateError as exc:
            raise CheckpointCorruptError(
                f"{path} is no checkpoint: {exc}: mend the file, or move it out of the folder", found=str(path)
            ) from exc
        if path.name not in _names(point.checkpoint_id):
            raise CheckpointCorruptError(
                f"{path} holds checkpoint {point.checkpoint_id!r}: name the file as the checkpoint, or move it out of the "
                f"folder",
                found=point.checkpoint_id,
            )
        return point

    @contextmanager
    def failing_as(self, op: str) -> Iterator[None]:
        """Convert errors of the disk to `StoreError`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as exc:
            raise StoreError(
                f"the folder {self.base} failed at {op}: {exc}: look at the disk and the folder's "
                f"rights, then try again",
                store=str(self.base),
                op=op,
            ) from exc


def _names(checkpoint_id: str) -> set[str]:
    return {place_of(checkpoint_id) + _SUFFIX, checkpoint_id + _SUFFIX}
