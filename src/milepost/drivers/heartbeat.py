"""The heartbeat, which keeps the leases of this process: one daemon thread, one `renew` for each store and beat.

The thread needs no user code to yield. Between beats it looks for cancels, every second while runs are held. It also
tries again the releases that a failing store could not take, so that a run does not stay locked by a verb that has long
ended. A forked child begins with an empty heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from milepost.errors import StoreClosedError
from milepost.model.ids import SYSTEM, Clock, in_forked_child
from milepost.store import Release, Store, Token

logger = logging.getLogger("milepost")

OWED = 30.0
"""The lease, in seconds, in whose rhythm a pending release is tried again if no run is held."""
LOOK = 1.0
"""Seconds between two looks for open cancels."""
IDLE = 60.0
"""The longest time, in seconds, for which the thread sleeps."""


class HeldLease:
    """A lease that is being kept; see `milepost.executor.effects.LeaseView`."""

    __slots__ = (
        "_is_failing",
        "_is_lost",
        "_renewed_at",
        "_watchers",
        "cancel",
        "clock",
        "is_draining",
        "is_ending",
        "lease",
        "store",
        "token",
    )

    def __init__(self, store: Store, token: Token, lease: float, clock: Clock) -> None:
        self.store = store
        self.token = token
        self.lease = lease
        self.clock = clock
        self.cancel: str | None = None
        self.is_draining = False
        self.is_ending = False
        self._watchers: set[Callable[[], None]] = set()
        self._is_lost = False
        self._is_failing = False
        self._renewed_at = clock.monotonic()

    @property
    def is_lost(self) -> bool:
        """True if the token is known to be stale, or the lease passed while the store could not be written."""
        return self._is_lost or (self._is_failing and self.clock.monotonic() > self._renewed_at + self.lease)

    @property
    def is_over(self) -> bool:
        """True if this owner must not go on with the run: it is lost, or cancelled and not on its way to its end."""
        return (self.cancel is not None and not self.is_ending) or self.is_lost

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, in any thread, when `is_over` becomes true; at once if it is."""
        self._watchers.add(tell)
        if self.is_over:
            self._tell()

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Stop calling `tell`."""
        self._watchers.discard(tell)

    def _tell(self) -> None:
        # A watcher that is added while others are told looks for itself: the lease may not be over for it any more.
        for tell in tuple(self._watchers):
            try:
                self._watchers.remove(tell)
            except KeyError:  # another thread has called it, or it has stopped watching
                continue
            tell()

    def cancelled(self, reason: str) -> None:
        """Note that a cancel is open."""
        self.cancel = reason
        if self.is_over:
            self._tell()

    def renewed(self, outcome: str, cancel: str | None) -> None:
        """Note the answer of a renewal."""
        self._is_failing = False
        if outcome == "lost":
            self._is_lost = True
        elif outcome == "kept":
            self._renewed_at = self.clock.monotonic()
        if cancel is not None:
            self.cancel = cancel
        if self.is_over:
            self._tell()

    def failed(self) -> None:
        """Note that the store could not renew."""
        self._is_failing = True
        if self.is_over:
            self._tell()


class Heartbeat:
    """All leases that this process keeps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._held: dict[Token, HeldLease] = {}
        self._owed: dict[Token, tuple[Store, Release]] = {}
        self._due = float("inf")
        """The time of the next beat, in the machine's monotonic seconds. A wake-up must not put it off."""
        self._thread: threading.Thread | None = None

    def hold(self, store: Store, token: Token, lease: float, clock: Clock) -> HeldLease:
        """Keep the lease of `token` from now on, `lease` seconds each time."""
        held = HeldLease(store, token, lease, clock)
        with self._lock:
            self._held[token] = held
            self._beat_within(lease / 3)
        return held

    def drop(self, store: Store, token: Token, owed: Release | None) -> None:
        """Stop keeping the lease of `token`; `owed` is a release to try again until the store takes it."""
        with self._lock:
            held = self._held.pop(token, None)
            if owed is not None:
                self._owed[token] = (store, owed)
                # Soon, if only an interruption kept it from being written; then in the rhythm of the lease.
                self._beat_within(min(LOOK, (held.lease if held is not None else OWED) / 3))
        # A released token is forgotten by the store; for any other the store must know that nobody uses it now.
        store.abandon(token)

    def _beat_within(self, seconds: float) -> None:
        """Have the next beat at the latest `seconds` from now; the lock is held."""
        due = SYSTEM.monotonic() + seconds
        if due >= self._due:
            return
        self._due = due
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="milepost-heartbeat", daemon=True)
            self._thread.start()
        else:
            self._wake.set()

    def _run(self) -> None:
        while True:
            left = self._due - SYSTEM.monotonic()
            # Before the beat is due a run may begin, which wakes nobody.
            if left > 0 and self._wake.wait(min(left, LOOK) if left < float("inf") else IDLE):
                self._wake.clear()
                continue
            if left > 0:
                self.look()
                continue
            self.beat()
            with self._lock:
                leases = [held.lease for held in self._held.values()]
                pause = min(leases, default=OWED if self._owed else float("inf")) / 3
                self._due = SYSTEM.monotonic() + pause

    def look(self) -> None:
        """Look for cancels of the runs that are held here."""
        for leases in self._by_store():
            store = leases[0].store
            try:
                reasons = store.cancels([held.token.run_id for held in leases])
            except Exception as exc:  # a renewal will report it
                logger.debug("cancels in %s could not be looked for: %s", store.place, exc)
                continue
            for held in leases:
                if held.token.run_id in reasons:
                    held.cancelled(reasons[held.token.run_id])

    def _by_store(self) -> list[list[HeldLease]]:
        by_store: dict[int, list[HeldLease]] = {}
        with self._lock:
            for held in self._held.values():
                by_store.setdefault(id(held.store), []).append(held)
        return [*by_store.values()]

    def beat(self) -> None:
        """Renew all leases now, and try the pending releases."""
        with self._lock:
            owed = list(self._owed.items())
        for leases in self._by_store():
            self._renew(leases)
        for token, (store, release) in owed:
            try:
                store.release(token, release)
            except StoreClosedError:
                # Nobody can release it through this store any more: the lease ends with its time.
                logger.debug("release of run %r is given up: its store is closed", token.run_id)
            except Exception as exc:
                logger.debug("release of run %r is still owed: %r", token.run_id, exc, extra={"run_id": token.run_id})
                continue
            with self._lock:
                self._owed.pop(token, None)

    def _renew(self, leases: list[HeldLease]) -> None:
        store = leases[0].store
        try:
            answers = store.renew([held.token for held in leases])
            for held, answer in zip(leases, answers, strict=True):
                held.renewed(answer.outcome, answer.cancel)
        except Exception as exc:
            logger.warning("leases in %s could not be renewed: %s", store.place, exc)
            for held in leases:
                held.failed()


heartbeat = Heartbeat()
"""The heartbeat of this process."""
in_forked_child(heartbeat.__init__)  # type: ignore[misc]
