"""The report of a check in the forms that CI systems read: JUnit XML, and annotations and a summary for GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree as ET

from milepost.checking.lint import Finding
from milepost.checking.report import WORDS, CheckReport, Group
from milepost.views.text import clean, plural


def to_junit(
    report: CheckReport, findings: Iterable[Finding] = (), *, strict: bool = False, lint_error: bool = False
) -> str:
    """Return JUnit XML: a test case for each group, each finding of the lint, and each flow that the app does not have.

    What is refused is a failure and what can't be read an error. Findings and unknown flows are skipped tests unless
    `lint_error` or `strict` make failures of them.
    """
    suite = ET.Element("testsuite", name="milepost check")
    for group in report.groups:
        case = _case(suite, group.flow, title_of(group))
        if group.is_bad:
            kind = "failure" if group.verdict == "refuse" else "error"
            details = ET.SubElement(case, kind, message=clean(group.reason), type=clean(group.error_type or ""))
            details.text = "\n".join(details_of(group))
    for finding in findings:
        case = _case(suite, finding.flow, f"{finding.code} {finding.file}:{finding.line}")
        ET.SubElement(case, "failure" if lint_error else "skipped", message=clean(finding))
    for flow, count in report.unknown.items():
        case = _case(suite, flow, f"{plural(count, 'run')} of a flow that the app does not have")
        ET.SubElement(case, "failure" if strict else "skipped", message="the app does not have this flow")
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{report.seconds:.3f}")
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, flow: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=clean(flow) or "milepost", name=clean(name))


def title_of(group: Group) -> str:
    """Return a group in a few words: `2 runs: refused`."""
    return f"{plural(group.runs, 'run')}: {WORDS[group.verdict]}" + (
        f" ({group.error_type})" if group.error_type else ""
    )


def details_of(group: Group) -> Iterator[str]:
    """Yield the lines that say what becomes of a group, for people."""
    yield clean(group.reason)
    yield f"such as {', '.join(map(clean, group.examples))}"
    if group.remedy:
        yield f"remedy: {clean(group.remedy)}"


def github_commands(
    report: CheckReport, findings: Iterable[Finding] = (), *, strict: bool = False, lint_error: bool = False
) -> Iterator[str]:
    """Yield the commands that make GitHub show an error or a warning beside a line of code.

    Findings and unknown flows are warnings unless `lint_error` or `strict` make errors of them.
    """
    for group in report.groups:
        if group.is_bad:
            place = {} if group.source is None else {"file": group.source.file, "line": str(group.source.line)}
            yield _command("error", "\n".join(details_of(group)), **place, title=f"{group.flow}: {title_of(group)}")
    for finding in findings:
        level, title = "error" if lint_error else "warning", f"{finding.code} in flow {finding.flow}"
        yield _command(level, finding.message, file=finding.file, line=str(finding.line), title=title)
    for flow, count in report.unknown.items():
        level = "error" if strict else "warning"
        yield _command(level, f"{plural(count, 'run')} of flow {flow!r}, which the app does not have")


def _command(level: str, message: str, **properties: str) -> str:
    # Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions and the runner's own escapes
    given = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{level} {given}::{_escaped(message)}" if given else f"::{level}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    lines = "\n".join(clean(line) for line in text.split("\n"))
    for sign in ("%", "\r", "\n", *more):
        lines = lines.replace(sign, f"%{ord(sign):02X}")
    return lines


def summary(
    report: CheckReport, findings: Sequence[Finding] = (), *, strict: bool = False, lint_error: bool = False
) -> str:
    """Return the report as a table in Markdown, for the summary of a GitHub job. Its first words are the verdict."""
    rows = [
        (group.flow, plural(group.runs, "run"), WORDS[group.verdict], "; ".join(_facts(group)), group.examples[0])
        for group in report.groups
    ]
    rows += [
        (flow, plural(count, "run"), "not checked", "the app does not have it", "")
        for flow, count in report.unknown.items()
    ]
    rows += [
        (finding.flow, f"{finding.file}:{finding.line}", finding.code, finding.message, "") for finding in findings
    ]
    head = [("flow", "runs", "verdict", "what", "such as"), ("---",) * 5]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (*head, *rows)]
    if not report.ok:
        verdict = "Some runs can't go on"
    elif strict and report.unknown:
        verdict = "Some runs are of flows that the app does not have"
    elif lint_error and findings:
        verdict = "The code may differ when it runs again"
    else:
        verdict = "All go on" if report.checked else "Nothing was checked"
    title = f"### milepost check\n\n{verdict}: {plural(report.checked, 'run')} of {report.of} checked.\n\n"
    return title + "\n".join(lines) + "\n"


def _facts(group: Group) -> Iterator[str]:
    yield group.reason if group.is_bad else "; ".join(group.differences)
    if group.remedy:
        yield f"remedy: {group.remedy}"


def _cell(text: str) -> str:
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\|`*_[]" else sign for sign in escaped)
