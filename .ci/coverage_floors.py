"""Fail where a file's coverage of lines is below its floor. Takes the report of `coverage json`."""

import json
import sys

FLOORS = {
    "src/milepost/store.py": 100,
    "src/milepost/model/record.py": 95,
    "src/milepost/model/checkpoint.py": 95,
    "src/milepost/stores/memory.py": 95,
    "src/milepost/stores/sqlite/store.py": 85,
    "src/milepost/stores/sqlite/transaction.py": 85,
    "src/milepost/executor/checks.py": 90,
    "src/milepost/graph/checks.py": 90,
    "src/milepost/executor/resume.py": 90,
}
ALL = 85

with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
found = {name: data["summary"]["percent_covered"] for name, data in report["files"].items()}
found["all"] = report["totals"]["percent_covered"]
low = []
for name, floor in {**FLOORS, "all": ALL}.items():
    percent = found.get(name, 0.0)
    print(f"{percent:6.1f} %  (at least {floor} %)  {name}")
    if percent < floor:
        low.append(name)
if low:
    sys.exit(f"below its floor: {', '.join(low)}")
