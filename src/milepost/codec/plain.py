"""Recorded JSON as people read it, in errors and on the command line."""

from __future__ import annotations

import re

from .plan import MARK

_FIELD = r'"(?!v")([$\w]+)":\s?("(?:[^"\\]|\\.)*"|[^",{}\[\]]+)'
_HEAD = rf'{{"\{MARK}":\s?"\w+"(?:,\s?{_FIELD})*,\s?"v":\s?'
"""The beginning of a tagged value, up to the value itself."""
_PARTS = re.compile(rf"""(?P<head>{_HEAD})|"(?:[^"\\]|\\.)*"?|[{{}}\[\],]|[^"{{}}\[\],]+""")
_CUT_HEAD = re.compile(rf'{{"\{MARK}"(?:(?!"v":).)*\Z')


def plain_text(text: str) -> str:
    """Return JSON without the marks of tagged values, which begin with their class or tag instead: `Quote {"price":1}`.

    What else marks a value follows it, so that texts differ where values do. The text may have been cut.
    """
    if MARK not in text:
        return text
    shown: list[str] = []
    behind: list[str | None] = []  # for each open bracket: what stands in place of its end; None: the end itself
    for found in _PARTS.finditer(_CUT_HEAD.sub("", text)):
        part = found[0]
        if found["head"]:
            fields = dict(re.findall(_FIELD, part))
            name = fields.pop("t", fields[MARK])[1:-1]
            behind.append("".join(f' "{key}":{value}' for key, value in fields.items() if key != MARK))
            part = f"{name} "
        elif part in {"[", "{"}:
            behind.append(None)
        elif part in {"]", "}"} and behind:
            end = behind.pop()
            part = part if end is None else end
        elif part == "," and behind and behind[-1] is not None:
            part = " "
        shown.append(part)
    return "".join(shown)
