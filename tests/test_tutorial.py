"""The tutorial is walked page by page in one empty folder, as a reader does, and shows what its pages say that it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PAGES = sorted((Path(__file__).parent.parent / "docs" / "tutorial").glob("[0-9]-*.md"))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "=== next command"
OF_THE_SHELL = re.compile(r"^.*bash: line \d+: .*\n", re.MULTILINE)


def walk_of(page: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a shell script that makes a page's files and types its commands, and the commands with what they show."""
    script, commands = ["set +m"], []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"a Python block of {page.name} does not begin with its file's name"
            script.append(f"cat >{name[1]} <<'END OF FILE'\n{text}END OF FILE")
            continue
        before, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not before
        for part in parts:
            command, _, shown = part.partition("\n")
            script += [f"echo '{MARK}'", command]
            commands.append((command, shown))
    return script, commands


def pattern_of(shown: str) -> str:
    """Return a pattern of the output that a page shows.

    `…` in a line stands for any text, a line of it for any lines, and the widths of columns may differ.
    """
    return "".join(
        r"(?:.*\n)*?" if line == "…" else re.sub(r"(\\ )+", " +", re.escape(line)).replace("…", ".*?") + r" *\n"
        for line in shown.splitlines()
    )


def test_the_tutorial_can_be_walked_and_shows_what_it_says(tmp_path: Path) -> None:
    assert [page.name[0] for page in PAGES] == ["1", "2", "3", "4", "5", "6"]
    environment = {**os.environ, "COLUMNS": "120", "MILEPOST_STORE": "sqlite:///runs.db"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for page in PAGES:
        script, commands = walk_of(page)
        shell = subprocess.Popen(
            ["/bin/bash", "-c", "\n".join(script)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = shell.communicate(timeout=100)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        parts = OF_THE_SHELL.sub("", output).split(MARK + "\n")[1:]
        assert len(parts) == len(commands), output
        for (command, shown), part in zip(commands, parts, strict=True):
            fits = not shown or re.fullmatch(pattern_of(shown), part)
            assert fits, f"{page.name}: {command}\n{part}\ninstead of\n{shown}"
