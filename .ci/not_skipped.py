"""Fail if tests whose name holds one of the given words were skipped, or if there were none: `REPORT.xml WORD...`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET


def main(report: str, words: list[str]) -> int:
    """0 if for each word there are tests and none of them was skipped for want of what it needs."""
    problems = []
    cases = [*ET.parse(report).iter("testcase")]
    for word in words:
        named = [case for case in cases if word in f"{case.get('classname')}.{case.get('name')}".lower()]
        missing = [
            f"{case.get('name')}: {skipped.get('message')}"
            for case in named
            for skipped in case.iter("skipped")
            if any(sign in (skipped.get("message") or "").lower() for sign in ("not installed", "not here", "missing"))
        ]
        if not named:
            problems.append(f"no test has {word!r} in its name")
        problems += missing
        print(f"{word}: {len(named)} tests, {len(missing)} skipped for want of it")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
