"""Checks of code before it is deployed: against the runs that a store holds, and of the code itself.

Nothing is written, no node and no step is run. Of a user's code only the bodies of workflows are called, over the record,
as `plan_resume` does.
"""

from milepost.checking.lint import Finding, lint
from milepost.checking.report import CheckReport, Group
from milepost.checking.runs import check
from milepost.checking.versions import FlowVersion, versions

__all__ = ["CheckReport", "Finding", "FlowVersion", "Group", "check", "lint", "versions"]
