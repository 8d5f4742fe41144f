"""Tracebacks as records have them, for people: the place in their own code, and the frames of libraries folded."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^([ |]*)File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<"
    r"|[/\\]milepost[/\\](?:drivers|executor|graph|workflows|engine|codec)[/\\]"
)


def error_place(traceback: str) -> str:
    """Return file, line and function of the innermost frame of the user's own code; without one, of any code; else ""."""
    frames = _FRAME.findall(traceback.rpartition("\n\n")[2]) or _FRAME.findall(traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[1])] or frames
    return "{1}:{2}, in {3}".format(*own[-1]) if own else ""


def fold_frames(traceback: str) -> str:
    """Fold each run of library frames into one line, which names the last of them. Without a user's frame all stay."""
    if all(_LIBRARY.search(path) for _, path, _, _ in _FRAME.findall(traceback)):
        return traceback
    lines: list[str] = []
    indent, count, last = "", 0, ""
    for line in [*traceback.splitlines(), ""]:
        frame = _FRAME.match(line)
        if count and frame is None and line.startswith((f"{indent}  ", f"{indent}[")):
            continue  # the source of a frame that is folded
        if frame is not None and _LIBRARY.search(frame[2]):
            indent, count, last = frame[1], count + 1, f"{frame[2]}:{frame[3]}, in {frame[4]}"
            continue
        if count:
            lines.append(f"{indent}... {count} frame{'s' if count > 1 else ''} of libraries, to {last}")
            count = 0
        lines.append(line)
    return "\n".join(lines[:-1])
