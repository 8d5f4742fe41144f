"""A disk that forgets: what it may hold when the power fails at any step that this process takes in a folder.

A step is a change of names, or a call that brings something to the disk. What was synchronised by then is certain: the
bytes of a file by its own `fsync`, a name by that of its folder. All else may be there, or in part, or not, and what was
taken away may be back.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Disk", "Moment", "put"]

Files = dict[str, bytes]

Choices = tuple[Files, ...]
"""What there may be in a place: as it is first, as it is certain last."""

_STEPS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


class Moment(NamedTuple):
    """What the disk may hold at a step: for each place one of some choices, whatever is chosen for the others."""

    step: str
    acknowledged: int
    """How much the process had been promised by then."""
    places: tuple[Choices, ...]

    def survivors(self, draw: random.Random, mixtures: int) -> Iterator[Files]:
        """All as it is, only what is certain, and mixtures of both."""
        yield self._chosen(lambda choices: choices[0])
        yield self._chosen(lambda choices: choices[-1])
        for _ in range(mixtures):
            yield self._chosen(draw.choice)

    def _chosen(self, choose: Callable[[Choices], Files]) -> Files:
        return {path: data for choices in self.places for path, data in choose(choices).items()}


class _Name(NamedTuple):
    """What stands under a name in a folder."""

    inode: int
    is_folder: bool


@dataclass(slots=True)
class _Synced:
    """What was brought to the disk of a file (its bytes) or a folder (its names)."""

    data: bytes = b""
    names: dict[str, _Name] = field(default_factory=dict)


class Disk:
    """What this process does in the folder `root`, from now on until it ends."""

    def __init__(self, root: Path) -> None:
        self.moments: list[Moment] = []
        self.acknowledged = 0
        self._root = os.path.realpath(root)
        self._synced: dict[int, _Synced] = {}
        self._kept: dict[int, int] = {}
        """Open descriptors, so that no inode is used again for another file."""
        self._is_looking = False
        self._sync(self._root)
        self._fsync = os.fsync
        os.fsync = self._watched_fsync  # type: ignore[assignment]
        sys.addaudithook(self._hear)

    def end(self) -> None:
        """Take no further step down; the last one is how it is now."""
        self._look("the end")
        self._is_looking = True
        os.fsync = self._fsync

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _STEPS or self._is_looking:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_TRUNC)):
            return
        self._look(event)

    def _watched_fsync(self, descriptor: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor if isinstance(descriptor, int) else descriptor.fileno()}")
        self._look("fsync")
        self._fsync(descriptor)
        self._sync(path)
        self._look("after fsync")

    def _look(self, step: str) -> None:
        self._is_looking = True
        places = self._folder("", self._root, os.stat(self._root).st_ino)
        self.moments.append(Moment(step, self.acknowledged, tuple(places)))
        self._is_looking = False

    def _sync(self, path: str) -> None:
        """Note what is there now as certain."""
        self._is_looking = True
        if os.path.exists(path):
            self._keep(path)
            found = os.stat(path)
            names = self._names(path) if stat.S_ISDIR(found.st_mode) else {}
            data = b"" if stat.S_ISDIR(found.st_mode) else Path(path).read_bytes()
            self._synced[found.st_ino] = _Synced(data, names)
            for name in names:
                self._keep(os.path.join(path, name))
        self._is_looking = False

    def _keep(self, path: str) -> None:
        inode = os.stat(path).st_ino
        if inode not in self._kept:
            self._kept[inode] = os.open(path, os.O_PATH)

    def _names(self, path: str) -> dict[str, _Name]:
        return {entry.name: _Name(entry.inode(), entry.is_dir()) for entry in os.scandir(path)}

    def _folder(self, prefix: str, path: str, inode: int) -> Iterator[Choices]:
        """The places in a folder."""
        now, sure = self._names(path), self._certain(inode).names
        for name, there in now.items():
            if there.is_folder:
                yield from self._folder(f"{prefix}{name}/", os.path.join(path, name), there.inode)
                continue
            at, data = f"{prefix}{name}", Path(path, name).read_bytes()
            certain = self._certain(there.inode).data
            choices = [{at: data}] if data == certain else [{at: data}, {at: data[: len(data) // 2]}, {at: certain}]
            if sure.get(name) != there:
                choices.append(dict(self._gone(at, sure[name])) if name in sure else Files())
            yield tuple(choices)
        for name in sure.keys() - now.keys():
            yield Files(), dict(self._gone(f"{prefix}{name}", sure[name]))

    def _gone(self, path: str, name: _Name) -> Iterator[tuple[str, bytes]]:
        """What is certain of something that was taken away, or moved; a folder as a whole, as it is moved."""
        certain = self._certain(name.inode)
        if not name.is_folder:
            yield path, certain.data
        for below, within in certain.names.items():
            yield from self._gone(f"{path}/{below}", within)

    def _certain(self, inode: int) -> _Synced:
        return self._synced.get(inode) or _Synced()


def put(folder: Path, files: Files) -> None:
    """Have these files in `folder`, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
