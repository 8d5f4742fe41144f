"""Checks of code before it is deployed: against the runs that a store holds, and of the code itself.

Nothing is written, no node and no step is run. Of a user's code only the bodies of workflows are called, over the record,
as `plan_resume` does.
"""

from milepost.checking.check import check
from milepost.checking.report import CheckReport, Group

__all__ = ["CheckReport", "Group", "check"]
