"""What docs/explanation/scale.md gives users to spread runs over databases does what it says there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "scale.md"
RUNS = [f"order-{number}" for number in range(20_000)]


@pytest.fixture(scope="module")
def shard_of() -> Callable[[str, list[str]], str]:
    (source,) = re.findall(r"```python\n(# shards\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    found: Callable[[str, list[str]], str] = names["shard_of"]
    return found


def test_a_run_has_the_same_shard_in_any_order_of_the_list_and_in_any_process(shard_of: Any) -> None:
    names = [f"db-{number}" for number in range(7)]
    assert [shard_of(run, names) for run in RUNS[:100]] == [shard_of(run, names[::-1]) for run in RUNS[:100]]
    assert ["db-4", "db-2", "db-0"] == [shard_of(run, names) for run in ("order-1", "order-2", "größe")]


def test_runs_are_spread_evenly(shard_of: Any) -> None:
    names = [f"db-{number}" for number in range(8)]
    counts = Counter(shard_of(run, names) for run in RUNS)
    assert set(names) == set(counts)
    assert max(counts.values()) < 1.1 * len(RUNS) / len(names)


def test_a_shard_that_is_added_takes_its_share_and_none_changes_between_the_others(shard_of: Any) -> None:
    names = [f"db-{number}" for number in range(8)]
    before = {run: shard_of(run, names) for run in RUNS}
    after = {run: shard_of(run, [*names, "db-new"]) for run in RUNS}
    moved = [run for run in RUNS if before[run] != after[run]]
    assert {"db-new"} == {after[run] for run in moved}
    assert len(RUNS) / 9 == pytest.approx(len(moved), rel=0.1)


def test_a_shard_that_is_gone_leaves_its_runs_to_all_others(shard_of: Any) -> None:
    names = [f"db-{number}" for number in range(8)]
    lost = [run for run in RUNS if shard_of(run, names) == "db-3"]
    rest = [name for name in names if name != "db-3"]
    assert all(shard_of(run, rest) == shard_of(run, names) for run in {*RUNS} - {*lost})
    assert max(Counter(shard_of(run, rest) for run in lost).values()) < 1.25 * len(lost) / 7
