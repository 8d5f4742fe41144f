"""Flows and bound flows as annotations that are evaluated, as signatures of a web framework's handlers are."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import pytest

from milepost import Bound, RunResult, Workflow
from milepost.verbs import Verbs

T = TypeVar("T")


@pytest.mark.parametrize("generic", [Bound, Verbs])
def test_what_the_verbs_give_in_full_may_be_left_out_of_an_annotation(generic: Any) -> None:
    assert (int, Any) == get_args(generic[int])
    assert (int, RunResult[int]) == get_args(generic[int, RunResult[int]])
    assert (str, Any) == get_args(generic[T][str])


@pytest.mark.parametrize("generic", [Bound, Verbs])
def test_an_annotation_names_one_type_at_least_and_two_at_most(generic: Any) -> None:
    for given in ((), (int, str, bytes)):
        with pytest.raises(TypeError):
            generic[given]


def test_annotations_of_flows_are_evaluated() -> None:
    def handler(flow: Workflow[[int], str]) -> Bound[str]: ...

    hints = get_type_hints(handler)
    assert (Workflow, Bound) == (get_origin(hints["flow"]), get_origin(hints["return"]))
