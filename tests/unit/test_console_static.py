"""The files that the console gives to browsers: what others made is unchanged, and all of it is small."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from milepost.graph.drawing import COLOURS

STATIC = Path(__file__).resolve().parents[2] / "src" / "milepost" / "console" / "static"
VENDORED = tomllib.loads((STATIC / "vendored.toml").read_text(encoding="utf-8"))


def size(*patterns: str) -> int:
    return sum(path.stat().st_size for pattern in patterns for path in STATIC.glob(pattern))


def test_files_of_others_are_unchanged_and_have_their_licence():
    for name, entry in VENDORED.items():
        digest = hashlib.sha256((STATIC / entry["file"]).read_bytes()).hexdigest()
        assert entry["sha256"] == digest, name
        assert entry["version"] in entry["source"]
        assert "Permission" in entry["licence"]


def test_statuses_have_the_colours_of_drawn_graphs_and_signs_of_their_own():
    style = (STATIC / "console.css").read_text(encoding="utf-8")
    for face, border in COLOURS.values():
        assert f"--face: light-dark({face}, " in style
        assert f"--rim: light-dark({border}, " in style
    signs = [line.split('"')[1] for line in style.splitlines() if "--sign: " in line]
    assert len(COLOURS) == len({*signs}) == len(signs)


def test_scripts_and_styles_are_small():
    others = sum((STATIC / entry["file"]).stat().st_size for entry in VENDORED.values())
    scripts = size("*.js")
    assert scripts <= 105_000
    assert scripts - others <= 12_000
    assert size("*.css") <= 20_000
