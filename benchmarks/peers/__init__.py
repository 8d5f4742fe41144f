"""The same work in other libraries: `python -m benchmarks.peers`.

The libraries are installed into an environment of their own; neither the project nor its tests need them. Each system does
each work in a new process, one round after the other, and what is told are medians over the rounds and of ratios within a
round. One file per system says how that library does the works (`langgraph`, `dbos`, ..., `milepost`, and `limit`, which
uses no library); `works` says which works there are, `measuring` runs them, `report` and `chart` tell what came out.
"""
