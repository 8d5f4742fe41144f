"""How fast the library is, beside what the machine allows: `python -m benchmarks`.

Every figure is measured interleaved with its limit (the same work without the library) in the same process, and told
as the median over rounds with its spread. `benchmarks/README.md` says what each figure means. No network,
and nothing beyond the library and the standard library.
"""
