"""The command line: looks into stores, runs and resumes flows, and shows what the library does (`milepost demo`).

Nothing of the library imports this package. Its packages (click, rich, jsonpatch) are the extra `cli`; rich is imported
only by what draws in a terminal, so that `--json` stays quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

_PACKAGES = ("click", "rich", "jsonpatch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (None: that of the process); its exit code. Prints one line where the extra is missing."""
    missing = [name for name in _PACKAGES if not _is_installed(name)]
    if missing:
        print(f"milepost: the command line needs {', '.join(missing)}: pip install 'milepost[cli]'", file=sys.stderr)
        return 2
    try:
        from milepost.cli.app import main as run_command
    except KeyboardInterrupt:
        print("milepost: interrupted", file=sys.stderr)
        return 130
    return run_command(arguments)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        return False
