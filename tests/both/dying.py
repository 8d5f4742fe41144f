"""A process that dies while several things run at once: `crash` runs or resumes a graph until one of them is deadly."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.drivers.branches import Branch, Branches


def crash(verbs: Any, graph: Any, store: Any, run_id: str, state: Any = None, **options: Any) -> None:
    """`verbs.crash`, where the node that raises `Killed` may be in a branch: nothing beside it goes on either."""

    class Mortal(Branches):
        """Branches that end with the process, instead of hearing of its end."""

        def fail(self, branch: Branch, error: BaseException) -> None:
            if isinstance(error, verbs.Killed):
                raise error
            super().fail(branch, error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.drivers.blocking.Branches", Mortal)
        verbs.crash(graph, store, run_id, state, **options)
