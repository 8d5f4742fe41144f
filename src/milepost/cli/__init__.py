"""The command line: looks into stores, runs and resumes flows, and shows what the library does (`milepost demo`).

Nothing of the library imports this package. Its packages (click, rich, jsonpatch) are the extra `cli`; rich is imported
only by what draws in a terminal, so that `--json` stays quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

_PACKAGES = ("click", "rich", "jsonpatch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (None: that of the process); its exit code. Prints one line where the extra is missing."""
    _open_closed_streams()
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


def _open_closed_streams() -> None:
    """Let a standard stream that the shell has closed lead nowhere, here and in child processes.

    In this order each gets the number that is its own. So no file that is opened later gets it, and with it what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        return False
