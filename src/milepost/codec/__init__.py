"""The codec: it writes a user's values as strict JSON and reads them back, equal and of the same types.

A value that cannot be carried exactly is refused with its path. Each declared type becomes a plan (`plan.py` explains
plans), which `resolve.py` makes from annotations. `scalars.py`, `containers.py` and `records.py` have the plans of
values; `families.py` takes dataclasses and their relatives apart and builds them; `untyped.py` decides where the type
alone does not. `codec.py` has the codec itself, `functions.py` the codecs of functions, `schema.py` says what JSON a
type would take, and `plain.py` shows values to people. Nothing here does I/O, and nothing is imported because a record
names it.
"""

from __future__ import annotations

from .codec import Codec, canonical
from .untyped import register

__all__ = ["Codec", "canonical", "register"]
