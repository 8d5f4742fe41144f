"""Build the site of the documentation into `site/`: pages, the reference from docstrings, and the texts for language models.

`pip install -e '.[docs]' && python .ci/build_site.py`. Ends with an error if a link or an anchor leads nowhere, a page is in no
menu, or a page would load something from outside.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, SITE = ROOT / "docs", ROOT / "site"
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*\bhref=[\"']?(?:https?:)?//"
)


def menu() -> list[str]:
    """Return the pages of the menu in mkdocs.yml, in its order."""
    pages = re.findall(
        r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    missing = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - set(pages)
    if missing:
        raise SystemExit(f"in no menu of mkdocs.yml: {', '.join(sorted(missing))}")
    return pages


def write_texts(pages: list[str]) -> None:
    """Put each page's Markdown beside it, and all of them into `llms-full.txt`, with `llms.txt` as the list."""
    listed, whole = (
        ["# Milepost\n", "> Durable workflows in plain Python: a process may die at any moment and loses nothing.\n"],
        [],
    )
    for page in pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        (SITE / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS / page, SITE / page)
        title = text.partition("\n")[0].removeprefix("# ")
        listed.append(f"- [{title}]({page})")
        whole.append(text)
    (SITE / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (SITE / "llms-full.txt").write_text("\n".join(whole), encoding="utf-8")


def main() -> None:
    pages = menu()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict", "--clean", "-f", "mkdocs.yml"], cwd=ROOT, check=True)
    write_texts(pages)
    outside = [str(path) for path in SITE.rglob("*.html") if LOADED.search(path.read_text(encoding="utf-8"))]
    if outside:
        raise SystemExit(f"load something from outside: {', '.join(outside)}")


if __name__ == "__main__":
    main()
