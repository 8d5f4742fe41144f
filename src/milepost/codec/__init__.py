"""The codec: it writes a user's values as strict JSON and reads them back, equal and of the same types.

A value that cannot be carried exactly is refused with its path. Each declared type becomes a plan (`plan.py` explains
plans), which `resolve.py` makes from annotations. `scalars.py`, `times.py`, `containers.py`, `mappings.py`, `enums.py`
and `records.py` have the plans of values; `family.py` and `families.py` take dataclasses and their relatives apart and
build them; `untyped.py` and `unions.py` decide where the type alone does not; `schema.py` says what JSON a type would
take. Nothing here does I/O, and nothing is
imported because a record names it.
"""

from __future__ import annotations

from .registry import register
from .state import Codec, canonical

__all__ = ["Codec", "canonical", "register"]
