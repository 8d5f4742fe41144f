"""The environment that the compared libraries are installed into, made anew when what belongs into it has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["cached", "installed"]

_ROOT = Path(__file__).resolve().parents[2]
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def cached() -> Path:
    """Where the environment is kept if nobody says where: the user's folder for caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "milepost-peers"


def installed(folder: Path) -> Path:
    """The interpreter of the environment in `folder`, with the pinned libraries and this checkout."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp, wanted = folder / "installed", _wanted()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    sys.stderr.write(f"installing into {folder} ...\n")
    venv.create(folder, with_pip=True)
    install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run((*install, "-r", str(_REQUIREMENTS), "-e", f"{_ROOT}[postgres]"), check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python


def _wanted() -> str:
    parts = (sys.version, str(_ROOT), _REQUIREMENTS.read_text(), (_ROOT / "pyproject.toml").read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
