"""Large states that change little: in whatever form a store keeps them, they are read whole."""

from __future__ import annotations

import msgspec

from milepost.model.record import CHECKPOINT
from milepost.store import Append, Release, Store
from milepost.testing.chats import chat, said, state_of, talk
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, owner, take, write


class LargeContract(StoreUnderTest):
    """Every state comes back as it went in, whatever is kept of it, and whatever goes."""

    def test_large_states_come_back_whole_by_every_way(self, store: Store) -> None:
        """Read in order, backwards, one by one, by node and visit, and as the latest point."""
        token = begin(store, "r")
        talk(store, token, 1, 90)
        states = {n: chat(n) for n in range(1, 91)}
        read = {record.sequence: record.state() for record in store.read("r", kinds=(CHECKPOINT,))}
        assert states == read
        backwards = store.read("r", kinds=(CHECKPOINT,), newest=True)
        assert [states[n] for n in range(90, 0, -1)] == [record.state() for record in backwards]
        assert [states[n] for n in (90, 89, 88)] == [r.state() for r in store.read("r", newest=True, limit=3)]
        assert all(states[n] == state_of(store, "r", n) for n in (1, 7, 64, 65, 66, 90, 33))
        assert [states[n] for n in range(2, 91, 3)] == [r.state() for r in store.read("r", node_id="c")]
        assert states[10] == json_state(store.load("r", "b", 4))
        latest = store.latest("r")
        assert latest.point is not None
        assert states[90] == latest.point.state()
        before = store.latest("r", before=50).point
        assert before is not None
        assert states[49] == before.state()
        assert [len(chat(n)) for n in range(1, 91)] == [info.size for info in store.history("r")]
        assert len(chat(90)) == store.get_run("r").info.size
        report = store.verify("r")
        assert (True, ()) == (report.ok, report.problems)

    def test_large_states_of_several_records_in_one_append_come_back_whole(self, store: Store) -> None:
        """Records that are handed in together, of one run and of several."""
        tokens = [begin(store, run_id) for run_id in ("r", "s")]
        for first in range(1, 60, 6):
            batch = [Append(t, tuple(said(t.run_id, n) for n in range(first, first + 6))) for t in tokens]
            assert ["written", "written"] == [verdict.outcome for verdict in store.append(batch)]
        assert all(chat(n) == state_of(store, run_id, n) for run_id in ("r", "s") for n in (1, 2, 30, 59, 60))

    def test_compressed_states_come_back_whole(self, store: Store) -> None:
        """As `compress_state` asks for it."""
        token = begin(store, "r")
        talk(store, token, 1, 40, compressing=True)
        assert all(chat(n) == record.state() for n, record in enumerate(store.read("r", after=0), 1))
        assert store.verify("r").ok
        copied = store.import_run(store.export("r"), run_id="copy")
        assert all(chat(n) == state_of(store, copied, n) for n in (1, 20, 40))

    def test_a_small_change_of_a_large_state_is_kept_as_such(self, store: Store) -> None:
        """Storage grows with the change where a store says that it keeps differences."""
        token = begin(store, "r")
        talk(store, token, 1, 120)
        kept, last, whole = store.stats().size, len(chat(120)), sum(len(chat(n)) for n in range(1, 121))
        assert whole > 40 * last
        assert not getattr(store, "keeps_differences", False) or kept < 4 * last

    def test_a_state_that_is_refused_is_no_base_of_the_next(self, store: Store) -> None:
        """What was not written is nothing that others could build on."""
        token = begin(store, "r")
        talk(store, token, 1, 10)
        assert "gap" == write(store, token, said("r", 12)).outcome
        talk(store, token, 11, 12)
        assert "taken" == write(store, token, said("r", 12)).outcome
        talk(store, token, 13, 14)
        assert all(chat(n) == state_of(store, "r", n) for n in range(10, 15))

    def test_of_several_appends_one_that_is_refused_is_no_base(self, store: Store) -> None:
        """Appends of one run that are handed in together, of which not all are written."""
        token = begin(store, "r", state=chat(20))
        talk(store, token, 1, 20)
        batch = [Append(token, (said("r", 21),)), Append(token, (said("r", 23),))]
        assert ["written", "gap"] == [verdict.outcome for verdict in store.append(batch)]
        talk(store, token, 22, 25)
        assert all(chat(n) == state_of(store, "r", n) for n in range(20, 26))

    def test_a_run_builds_on_nothing_of_a_former_one_of_its_id(self, store: Store) -> None:
        """What was known of a run is of no use once it is deleted."""
        token = begin(store, "r")
        talk(store, token, 1, 20)
        write(store, token, release=Release("finished"))
        store.latest("r")
        store.delete_run("r")
        token = begin(store, "r", state=chat(20))
        assert chat(20) == state_of(store, "r", 0)
        talk(store, token, 1, 2)
        assert all(chat(n) == state_of(store, "r", n) for n in (1, 2))

    @requires(is_shared_between_processes=True)
    def test_a_run_that_another_object_makes_anew_builds_on_nothing_of_the_former_one(
        self, store: Store, other: Store, clock: FakeClock
    ) -> None:
        """The new one has the same epochs and may have as many records."""
        for final in (20, 24):
            token = begin(other, "r")
            for n in range(1, final + 1):
                write(other, token, said("r", n) if final == 20 else checkpoint("r", n, visit=n))
            write(other, token, release=Release("interrupted"))
            store.latest("r")
            if final == 20:
                other.delete_run("r")
                clock.advance(1.0)
        taken = take(store, "r").token
        assert taken is not None
        talk(store, taken, 26, 27)
        assert all(chat(n) == state_of(store, "r", n) for n in (26, 27))

    def test_another_owner_goes_on_from_a_large_state(self, store: Store) -> None:
        """Each owner in turn, with and without a state of its own, one that was read and one that was not."""
        token, n = begin(store, "r"), 0
        for _ in range(4):
            talk(store, token, n + 1, n + 6)
            assert "written" == write(store, token, release=Release("interrupted")).outcome
            claimed = take(store, "r")
            assert claimed.token is not None
            token, n = claimed.token, n + 7
        talk(store, token, n + 1, n + 2)
        assert all(chat(k) == state_of(store, "r", k) for k in (1, 6, 8, 13, 15, 27, 29, 30))
        assert store.verify("r").ok

    @requires(is_shared_between_processes=True)
    def test_what_another_object_wrote_is_built_upon(self, store: Store, other: Store) -> None:
        """Two objects of one store take turns; neither trusts what it knew before the other came."""
        token = begin(store, "r")
        talk(store, token, 1, 6)
        write(store, token, release=Release("interrupted"))
        taken = take(other, "r").token
        assert taken is not None
        talk(other, taken, 8, 12)
        write(other, taken, release=Release("interrupted"))
        mine = take(store, "r").token
        assert mine is not None
        talk(store, mine, 14, 16)
        assert "lost" == write(other, taken, said("r", 17)).outcome
        for n in (1, 6, 8, 12, 14, 16):
            assert chat(n) == state_of(store, "r", n) == state_of(other, "r", n)

    def test_a_state_survives_the_deletion_of_what_it_builds_on(self, store: Store, clock: FakeClock) -> None:
        """A node is deleted: the others keep their states, and storage does not explode."""
        token = begin(store, "r")
        talk(store, token, 1, 60)
        before = store.stats().size
        write(store, token, release=Release("interrupted"))
        store.delete("r", "b")
        left = [n for n in range(1, 61) if n % 3 != 1]
        assert {n: chat(n) for n in left} == {r.sequence: r.state() for r in store.read("r", kinds=(CHECKPOINT,))}
        assert all(chat(n) == state_of(store, "r", n) for n in reversed(left))
        assert store.verify("r").problems == ()
        assert not getattr(store, "keeps_differences", False) or store.stats().size < 2 * before
        store.delete("r", "a")
        assert all(chat(n) == state_of(store, "r", n) for n in left if n % 3 == 2)
        token2 = take(store, "r").token
        assert token2 is not None
        newest = store.latest("r").newest
        write(store, token2, checkpoint("r", newest + 1, "d", state=chat(61)))
        assert chat(61) == state_of(store, "r", newest + 1)
        assert chat(59) == state_of(store, "r", 59)

    def test_chains_that_lose_links_here_and_there_stay_whole(self, store: Store) -> None:
        """Several chains of a run, of each of which something goes."""
        token, rows = begin(store, "r"), [f"row {n} " * 20 for n in range(60)]
        states = dict[int, bytes]()
        for n in range(1, 161):
            rows[n % 60] = f"now {n} " * 20
            states[n] = msgspec.json.encode(rows)
            write(store, token, checkpoint("r", n, "ab"[n % 7 == 3 or n % 11 == 5], visit=n, state=states[n]))
        write(store, token, release=Release("interrupted"))
        store.delete("r", "b")
        left = [record.sequence for record in store.read("r", kinds=(CHECKPOINT,))]
        assert 100 < len(left) < 140
        assert all(states[n] == state_of(store, "r", n) for n in left)

    def test_a_chain_with_much_between_its_links_is_read_whole(self, store: Store) -> None:
        """Small records, and one link read after another that was not the one before."""
        token, n = begin(store, "r"), 0
        for turn in range(20, 32):
            write(store, token, checkpoint("r", n + 1, "large", visit=n + 1, state=chat(turn)))
            small = [checkpoint("r", k, "small", visit=k) for k in range(n + 2, n + 32)]
            write(store, token, *small)
            n += 31
        assert all(chat(turn) == state_of(store, "r", 1 + 31 * (turn - 20)) for turn in range(31, 19, -1))
        states = [record.state() for record in store.read("r", node_id="large")]
        assert [chat(turn) for turn in range(20, 32)] == states

    def test_a_thinned_run_keeps_its_states(self, store: Store) -> None:
        """`prune(keep_last=)` leaves whole what it leaves."""
        token = begin(store, "r")
        talk(store, token, 1, 60)
        write(store, token, release=Release("finished"))
        store.prune(keep_last=2)
        assert list(range(55, 61)) == [r.sequence for r in store.read("r", kinds=(CHECKPOINT,))]
        assert all(chat(n) == state_of(store, "r", n) for n in range(60, 54, -1))
        store.prune(keep_last=1)
        assert all(chat(n) == state_of(store, "r", n) for n in (58, 59, 60))
        assert store.verify("r").problems == ()
        taken = take(store, "r").token
        assert taken is not None
        talk(store, taken, 62, 64)
        assert all(chat(n) == state_of(store, "r", n) for n in (58, 60, 62, 64))

    def test_what_was_read_before_a_deletion_is_not_built_upon(self, store: Store) -> None:
        """A claim that was made ready before fails; the next one builds on what is there."""
        token = begin(store, "r")
        talk(store, token, 1, 30)
        write(store, token, release=Release("interrupted"))
        store.latest("r")
        store.delete("r", "a")
        taken = take(store, "r").token
        assert taken is not None
        newest = store.latest("r").newest
        write(store, taken, checkpoint("r", newest + 1, "d", state=chat(31)))
        assert chat(31) == state_of(store, "r", newest + 1)
        store.delete("r", "c", force=True)
        assert "lost" == write(store, taken, checkpoint("r", newest + 3, "d", state=chat(32))).outcome
        assert chat(31) == state_of(store, "r", newest + 1)

    def test_an_override_and_a_replaced_state_come_back(self, store: Store) -> None:
        """States that have nothing to do with the one before."""
        token = begin(store, "r")
        talk(store, token, 1, 10)
        write(store, token, release=Release("interrupted"))
        latest = store.latest("r")
        state = chat(4)[::-1].translate(None, b'"\\{}[]').join((b'{"x":"', b'"}'))
        text = state.decode("ascii", "ignore").encode()
        record = owner("r", 11, latest.row.epoch + 1, node_id="b", state=text)
        taken = take(store, "r", record=record).token
        assert taken is not None
        talk(store, taken, 12, 13)
        write(store, taken, checkpoint("r", 14, "d", state=text))
        assert [text, chat(12), chat(13), text] == [state_of(store, "r", n) for n in (11, 12, 13, 14)]

    def test_a_large_run_moves_whole(self, store: Store) -> None:
        """Export and import give the same run again, byte for byte."""
        token = begin(store, "r")
        talk(store, token, 1, 50)
        write(store, token, release=Release("interrupted"))
        exported = store.export("r")
        before = store.stats().size
        store.import_run(exported, run_id="copy")
        assert not getattr(store, "keeps_differences", False) or store.stats().size < 3 * before
        assert [r.state() for r in store.read("r")] == [r.state() for r in store.read("copy")]
        store.delete_run("r")
        store.import_run(exported)
        again = take(store, "r").token
        assert again is not None
        talk(store, again, 52, 53)
        assert all(chat(n) == state_of(store, "r", n) for n in (1, 25, 50, 53))


def json_state(envelope: bytes) -> bytes:
    """Return the state in an envelope, as it was encoded."""
    begin_at = envelope.index(b'"state":') + len(b'"state":')
    return envelope[begin_at:-1]
