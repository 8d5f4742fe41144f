"""A user's values as strict JSON and back, equal and of the same types, or refused by path.

How it works: each declared type becomes a plan (`plan.py` says what a plan is), made by `resolve.py` from
annotations. `scalars.py`, `times.py`, `containers.py`, `mappings.py`, `enums.py` and `records.py` hold the plans of values;
`family.py` and `families.py` know how dataclasses and their relatives are taken apart and built; `untyped.py`
and `unions.py` decide where the type alone does not. Nothing here does I/O, and nothing is imported by a name
that stands in a record.
"""

from __future__ import annotations

from .registry import register
from .state import Codec, canonical

__all__ = ["Codec", "canonical", "register"]
