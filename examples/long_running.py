"""A workflow of two expensive steps, recorded in `.milepost/checkpoints/` of the working directory.

    python long_running.py            # kill it in the second step: kill -9
    python long_running.py RUN_ID     # goes on with the second step

The id of the run is in the first event that is printed. The first step is marked as a checkpoint, so that there is a file of
it to look at, too: `.milepost/checkpoints/RUN_ID/expensive.json`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from milepost import WorkflowEngine, step, workflow

PACE = float(os.environ.get("PACE", "3"))
"""Seconds that each step takes."""


def work(what: str) -> None:
    print(f"  {what}", file=sys.stderr)
    time.sleep(PACE)


def expensive_compute(data: str) -> dict[str, int]:
    work("expensive_compute")
    return {letter: data.count(letter) for letter in sorted(set(data))}


def transform(counts: dict[str, int]) -> str:
    work("transform")
    return " ".join(f"{letter}{count}" for letter, count in counts.items())


@workflow("long_running")
def long_running(data: str):
    # First phase - expensive
    result = yield step("expensive").python(expensive_compute, args=(data,)).checkpoint()

    # Second phase - also expensive
    final = yield step("transform").python(transform, args=(result,))

    return final


async def first_run() -> None:
    engine = WorkflowEngine()
    async for event in engine.execute(long_running, data="input"):
        print(event, flush=True)
    print(engine.get_result().final_output)


async def resume(run_id: str) -> None:
    engine = WorkflowEngine()
    async for event in engine.resume(
        long_running,
        workflow_id=run_id,
        data="input",  # Must match original
    ):
        print(event, flush=True)
    print(engine.get_result().final_output)


if __name__ == "__main__":
    asyncio.run(resume(sys.argv[1]) if len(sys.argv) > 1 else first_run())
