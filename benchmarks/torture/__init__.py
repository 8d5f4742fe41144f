"""Torture for stores: `python -m benchmarks.torture` kills and freezes workers, then proves that nothing was hurt.

`work` is what a process does, `crew` are those that do it, `ordeal` kills and freezes them, `reading` reads the journals
that they left, and `checking` judges these by itself: it imports nothing of the library.
"""
