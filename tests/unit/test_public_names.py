"""What `milepost` gives: names that are loaded when they are asked for, and are what type checkers are told."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import milepost

SOURCE = Path(milepost.__file__)
TOLD = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "milepost"
    for alias in node.names
}
"""Each name that type checkers see, and the module that it is from."""


def run(code: str) -> str:
    """What a new process writes that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def test_what_type_checkers_are_told_is_all_there_is():
    assert set(milepost.__all__) == set(TOLD)
    assert sorted(set(milepost.__all__)) == sorted(milepost.__all__)


@pytest.mark.parametrize("name", milepost.__all__)
def test_a_name_is_what_type_checkers_are_told(name: str):
    if TOLD[name] == "milepost":
        assert import_module(f"milepost.{name}") is getattr(milepost, name)
    else:
        assert getattr(import_module(TOLD[name]), name) is getattr(milepost, name)
    assert name in dir(milepost)


def test_another_name_is_an_attribute_error_that_says_so():
    with pytest.raises(AttributeError, match="module 'milepost' has no attribute 'Grpah'"):
        milepost.Grpah  # type: ignore[attr-defined]  # noqa: B018


def test_the_modules_of_names_are_there_without_an_import_of_their_own():
    assert "RunStarted" == run("import milepost; print(milepost.events.RunStarted.__name__)")
    assert "register" == run("import milepost; print(milepost.codec.register.__name__)")


def test_all_names_come_with_a_star():
    assert str(len(milepost.__all__)) == run(
        "from milepost import *; import milepost; print(len({*milepost.__all__} & {*dir()}))"
    )


def test_no_module_takes_the_place_of_a_name_that_is_called_as_it_is():
    loaded = "; ".join(
        f"import {module}" for module in sorted({*TOLD.values()}) if module != "milepost.stores.postgres"
    )
    assert "function" == run(f"{loaded}; from milepost import workflow; print(type(workflow).__name__)")
