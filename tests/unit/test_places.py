"""Names of files for ids: people can read them, no two ids share one, and none leads out of its folder."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from milepost.errors import StoreError
from milepost.stores.file.fs import below, place_of
from milepost.testing.tables import for_each

PLAIN = ["r", "o-17", "2025-12-20_a.b", "0", "a" * 100, "a..b", "conx", "com", "nul-1", "parse.json"]
RESERVED = ["con", "nul", "aux.json", "com1", "lpt9.a.b", "prn."]
OTHERS = [
    "R",
    "a ",
    "a.",
    ".",
    "..",
    ".a",
    "-a",
    "_a",
    "~",
    "a/b",
    "a\\b",
    "/",
    "é",
    "日本",
    "a" * 101,
    "%41",
    "",
    "CON",
    "a:b",
]


@for_each("id", PLAIN)
def test_an_ordinary_id_is_its_own_name(id: str) -> None:
    assert id == place_of(id)


@for_each("id", [*OTHERS, *RESERVED])
def test_any_other_id_gets_its_percent_form_and_a_part_of_its_digest(id: str) -> None:
    form, _, digest = place_of(id).rpartition("~")
    assert len(form) <= 100
    assert 16 == len(digest)
    assert unquote(form) == id[: len(unquote(form))]


ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=150) | st.sampled_from([*PLAIN, *RESERVED, *OTHERS])


@given(ids, ids)
@example("a", "A")
@example("a" * 101, "a" * 102)
@example("%41", "A")
def test_two_ids_never_share_a_name_whatever_case_a_file_system_folds(first: str, second: str) -> None:
    assert (first == second) == (place_of(first).lower() == place_of(second).lower())


@given(ids)
def test_a_name_is_one_component_that_every_system_takes(id: str) -> None:
    name = place_of(id)
    assert name == place_of(id)
    assert name.isascii()
    assert 1 <= len(name) <= 117
    assert not set(name) & set('/\\:*?"<>| \0')
    assert name[0] != "."
    assert name[-1] not in ". "
    assert name.partition(".")[0].lower() not in {"con", "prn", "aux", "nul", "com1", "lpt9"}
    assert Path("/root") / name == below(Path("/root"), name)


@for_each("name", ["", ".", "..", "/", "a/b", "../a", "a\\b", "C:", "a\0b"])
def test_a_path_stays_below_its_root(name: str) -> None:
    with pytest.raises(StoreError, match="below /root"):
        below(Path("/root"), "a", name)
