"""Write `docs/reference/commands.md`, every command of `milepost` with its arguments and options, from the commands themselves.

`python .ci/command_reference.py` after a change of a command; `tests/test_docs.py` fails where the page is old.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from milepost.cli.app import Deferred, cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "commands.md"
SHARED = ("store", "json", "debug", "help")
HEAD = """# All commands

What each command takes. How they are used together stands in [command line](command-line.md), with the [exit
codes](command-line.md#exit-codes). This page is made from the commands themselves. `--store URL`, `--json` and `--debug`
belong to all of them, before or after the command, and `--help` shows what stands here.
"""


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Give the name and command of all below a group."""
    context = click.Context(group)
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        if isinstance(command, Deferred):
            command = command.load()
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def text_of(words: str | None) -> str:
    """Return a help text in one line, as it may stand in a table."""
    return " ".join((words or "").replace("\b", "").split()).replace("|", "\\|")


def section(name: str, command: click.Command) -> str:
    """Return a command's heading, usage, help and table of options."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")])
    lines = [f"\n## {name.partition(' ')[2]}\n", f"`{usage}`\n"]
    lines += [
        # What is not to be rewrapped in a terminal keeps its lines here too.
        f"```text\n{part.lstrip()[1:].strip()}\n```\n" if "\b" in part else f"{text_of(part)}\n"
        for part in (command.help or "").split("\n\n")
    ]
    rows = []
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in SHARED and not option.hidden:
            record = option.get_help_record(context)
            rows.append(f"| `{text_of(record[0])}` | {text_of(record[1])} |" if record else "")
    if rows:
        lines.append("\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n")
    return "\n".join(lines)


def page() -> str:
    """Return the page's text."""
    return HEAD + "".join(section(name, command) for name, command in commands(cli, "milepost"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
