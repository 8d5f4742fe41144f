"""The plan of tuples that declare a type for each place, `tuple[int, str]`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from .plan import MAX_DEPTH, Contradicted, Plan, Refusal, Tagged, too_deep


class FixedTuplePlan(Tagged):
    """The plan of a tuple with one declared type for each place.

    `repeated` is a place and a plan for `*tuple[X, ...]`: any number of elements between those of `items`.
    """

    tag = "tuple"
    types = (tuple,)
    bare = frozenset({"list"})

    def __init__(self, items: tuple[Plan, ...], repeated: tuple[int, Plan] | None = None) -> None:
        self.items, self.repeated = items, repeated
        texts = [item.expected for item in items]
        if repeated is not None:
            texts.insert(repeated[0], f"*tuple[{repeated[1].expected}, ...]")
        self.expected = f"tuple[{', '.join(texts) or '()'}]"

    @cached_property
    def twin(self) -> Any:
        """The type of a tuple of the items' twins if these are the values themselves, else Any."""
        return Any if self.revives else tuple.__class_getitem__(tuple(item.twin for item in self.items))

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a tuple of the values themselves."""
        return self.repeated is not None or any(item.revives for item in self.items)

    def _plans_of(self, count: int) -> tuple[Plan, ...] | None:
        """Give one plan for each of `count` elements; None if no tuple of the type has so many."""
        more = count - len(self.items)
        if self.repeated is None or more < 0:
            return self.items if not more else None
        place, plan = self.repeated
        return (*self.items[:place], *[plan] * more, *self.items[place:])

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not tuple:
            raise self.contradicted(value)
        plans = self._plans_of(len(value))
        if plans is None:
            raise Contradicted("", expected=self.expected, found=f"a tuple of {len(value)}", type_name="tuple")
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        out: list[Any] = []
        try:
            for plan, item in zip(plans, value, strict=True):
                out.append(plan.dump(item, depth + 1))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(out)}]")
            raise
        return out, None

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        plans = self._plans_of(len(v)) if type(v) is list else None
        if plans is None:
            raise self.unreadable(v)
        out: list[Any] = []
        try:
            for plan, item in zip(plans, v, strict=True):
                out.append(plan.load(item, bare))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(out)}]")
            raise
        return tuple(out)
