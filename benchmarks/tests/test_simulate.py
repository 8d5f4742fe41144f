"""The simulation of a day keeps to what is known of queues, of arrivals and of arithmetic."""

from __future__ import annotations

import json
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.simulate import DAY, Load, Waits, curve, dispersion, draw_wait, main, plan, simulate, smallest

SMALL = Load(nodes=2e7, rate=500.0, peak=2.0)


def queue(load: float, rate: float, count: int) -> list[float]:
    """The waits in a queue with random arrivals and equal work, one by one. Source: Lindley's recursion."""
    chance, wait, waits = random.Random(3), 0.0, []
    for _ in range(count):
        waits.append(wait)
        wait = max(0.0, wait + 1 / rate - chance.expovariate(load * rate))
    return waits


@pytest.mark.parametrize("peak", [1.0, 1.5, 2.0, 2.5, 6.0])
def test_the_curve_of_a_day_has_mean_1_and_the_peak_that_was_asked_for(peak: float) -> None:
    day = [curve(second, peak) for second in range(0, DAY, 60)]
    assert 1 == pytest.approx(statistics.fmean(day), rel=1e-3)
    assert peak == pytest.approx(max(day))
    assert min(day) >= 0


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_waits_within_a_second_are_those_of_a_queue_with_equal_work(load: float) -> None:
    rate, chance = 100.0, random.Random(5)
    drawn = [draw_wait(chance, load, rate) for _ in range(100_000)]
    assert load / (2 * rate * (1 - load)) == pytest.approx(statistics.fmean(drawn), rel=0.05)
    told = queue(load, rate, 100_000)
    assert statistics.fmean(told) == pytest.approx(statistics.fmean(drawn), rel=0.1)
    assert statistics.quantiles(told, n=100)[98] == pytest.approx(statistics.quantiles(drawn, n=100)[98], rel=0.35)


def test_nobody_waits_where_nothing_is_asked() -> None:
    assert 0 == draw_wait(random.Random(1), 0.0, 100.0)


def test_nodes_of_long_runs_come_evenly_and_those_of_short_ones_together() -> None:
    assert 1 == dispersion(1, 60)
    assert 1.1 > dispersion(20, 3600) > 1
    chance = random.Random(2)
    seconds = [0] * 20_000
    for _ in range(40_000):
        begun, count = chance.randrange(len(seconds)), 1
        while chance.random() < 1 - 1 / 5:
            count += 1
        for _ in range(count):
            seconds[(begun + chance.randrange(10)) % len(seconds)] += 1
    assert dispersion(5, 10) == pytest.approx(statistics.variance(seconds) / statistics.fmean(seconds), rel=0.1)


def test_percentiles_of_waits_are_right_to_the_width_of_a_bucket() -> None:
    waits = Waits({})
    for wait in range(1, 1001):
        waits.add(wait / 1000, 1.0)
    assert (0.5, 0.99) == (
        pytest.approx(waits.percentile(0.5), rel=0.04),
        pytest.approx(waits.percentile(0.99), rel=0.04),
    )
    assert 0 == Waits({}).percentile(0.5)


def test_with_little_to_do_a_node_waits_for_its_commit_alone() -> None:
    day = simulate(SMALL, 8)
    assert SMALL.commit == pytest.approx(day.p50, rel=0.04)
    assert SMALL.commit + 2 / SMALL.rate > day.p99
    assert 0 == day.longest_backlog
    assert SMALL.nodes / DAY / 8 / SMALL.rate == pytest.approx(day.utilisation, rel=0.01)
    assert SMALL.peak * day.utilisation == pytest.approx(day.busiest, rel=0.01)


def test_what_is_too_much_at_the_peak_piles_up_and_is_worked_off() -> None:
    """As much piles up as comes above the rate, whatever the noise."""
    over = replace(SMALL, nodes=0.9 * DAY * 500.0, peak=1.5)
    above = sum(max(0.0, 0.9 * 500 * curve(second, 1.5) - 500) for second in range(DAY)) / 500
    assert above == pytest.approx(simulate(over, 1).longest_backlog, rel=0.05)


def test_the_fewest_shards_keep_the_bound_and_one_less_does_not() -> None:
    found = smallest(SMALL)
    assert found.p99 <= SMALL.bound < simulate(SMALL, found.shards - 1).p99
    assert found.shards <= smallest(SMALL, survives=True).shards
    with pytest.raises(ValueError, match="bound"):
        smallest(replace(SMALL, commit=1.0))


def test_a_shard_that_dies_leaves_its_new_runs_to_the_others() -> None:
    whole, broken = simulate(SMALL, 3), simulate(SMALL, 3, dead_at=15 * 3600.0)
    assert 3 / 2 * whole.busiest == pytest.approx(broken.busiest, rel=0.02)
    assert broken.p99 >= whole.p99


def test_the_same_seed_gives_the_same_day_and_another_one_another() -> None:
    assert simulate(SMALL, 2, 7) == simulate(SMALL, 2, 7) != simulate(SMALL, 2, 8)


def test_bytes_and_connections_are_those_of_the_options() -> None:
    told = plan(replace(SMALL, slack=1.0), shards=2)
    assert 2e7 * 1200 + 1e6 * 3200 == told["bytes a day"]
    assert 7 * told["bytes a day"] / 2 == told["bytes on disk with retention, a shard"]
    assert 2e7 * 1350 + 1e6 * 7100 == told["bytes of log a day"]
    assert (5, 12.0, False) == tuple(
        told[name] for name in ("worker processes", "connections of workers on a shard", "a pooler is needed")
    )


def test_the_command_prints_what_it_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--nodes", "1e6", "--shards", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (1e6, 1, 1) == (told["load"]["nodes"], told["seed"], told["day"]["shards"])
    assert 0 == main(["--nodes", "1e6", "--shards", "2"])
    assert "bytes of log a day: 1.71 GB" in capsys.readouterr().out
    for wrong in (["--rate", "0"], ["--peak", "0.5"], ["--shards", "0"], ["--commit", "2"]):
        with pytest.raises(SystemExit):
            main(wrong)
