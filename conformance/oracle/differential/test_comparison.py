#!/usr/bin/env python3
"""What the differential test may forgive, and what not: python3 conformance/oracle/differential/test_comparison.py (or -m unittest)."""
import json
import unittest

import run
from compare import compare


def line(op, ok=1, **rest):
    return json.dumps({"op": op, "ok": ok, **rest})


def freed(*segments):
    """Segments that go back: (segment's number, pool)."""
    return {"ev": [["segment_free", f"c{number}+0", 2 << 20, 0, *pool] for number, pool in segments],
            "drv": [["cudaFree", 0, f"c{number}"] for number, _ in segments]}


class Releases(unittest.TestCase):
    """Only abandoned pools have no order among them."""

    def differs(self, before, theirs, ours):
        theirs, ours = (before + [line("empty_cache", **freed(*side))] for side in (theirs, ours))
        number, difference, tolerated = compare(theirs, ours)
        self.assertEqual(number is not None, difference is not None)
        return difference is not None, tolerated

    def test_abandoned_pools_go_back_in_any_order(self):
        before = [line("pool_create 0 1"), line("pool_begin 2 0 all"), line("pool_end 2 0"), line("pool_release 0 1"), line("pool_release 2 0")]
        theirs, ours = [(3, (2, 0)), (1, (0, 1)), (4, (0, 1))], [(1, (0, 1)), (4, (0, 1)), (3, (2, 0))]
        self.assertEqual(self.differs(before, theirs, ours), (False, 1))
        self.assertTrue(self.differs(before, theirs, [(4, (0, 1)), (1, (0, 1)), (3, (2, 0))])[0], "within a pool there is an order")

    def test_others_do_not(self):
        abandoned = [line("pool_create 0 1"), line("pool_create 0 2"), line("pool_create 0 3"), line("pool_release 0 1"), line("pool_release 0 3")]
        theirs, ours = [(1, (0, 1)), (2, (0, 2))], [(2, (0, 2)), (1, (0, 1))]
        self.assertTrue(self.differs(abandoned, theirs, ours)[0], "one of them is in use")
        again = abandoned + [line("pool_begin 0 1 all", ok=0, msg="beginAllocateToPool: already recording to mempool_id"), line("pool_release 0 2")]
        self.assertTrue(self.differs(again, theirs, ours)[0], "it is used again, though the routing failed")
        refused = abandoned + [line("pool_begin 0 1 all", ok=0, msg="it->second->use_count > 0 INTERNAL ASSERT FAILED"), line("pool_release 0 2")]
        self.assertFalse(self.differs(refused, theirs, ours)[0], "an abandoned pool is not")
        # What is between two abandoned pools parts them.
        theirs, ours = [[(1, (0, 1)), (2, (0, 2)), (3, (0, 3))], [(3, (0, 3)), (2, (0, 2)), (1, (0, 1))]]
        self.assertTrue(self.differs(abandoned, theirs, ours)[0])


class LateUses(unittest.TestCase):
    """The script in which no use is remembered beyond the capture that it was recorded in."""

    def moved(self, ops, profile="2.11", **failing):
        answers = [line(op, ptr="c1+0", **failing) if op.startswith("alloc") else line(op) for op in ops]
        return run.with_late_uses(ops, answers, profile)

    def test_a_use_is_recorded_anew_just_before_its_block_is_given_back(self):
        ops = ["pool_begin 1 0 all", "alloc a 512", "record_stream a 1", "record_stream b 2", "pool_end 1 0", "alloc c 512", "free a", "free c"]
        expected = ["pool_begin 1 0 all", "alloc a 512", "record_stream b 2", "pool_end 1 0", "alloc c 512", "record_stream a 1", "free a", "free c"]
        self.assertEqual(self.moved(ops), expected)
        self.assertEqual(self.moved(ops[:-2] + ["free_all"]), expected[:5] + ["record_stream a 1", "free_all"])

    def test_what_is_given_back_where_it_was_recorded_or_never_stays(self):
        within = ["capture_begin 0", "alloc a 512 0", "record_stream a 1", "free a", "capture_end 0"]
        self.assertEqual(self.moved(within), within)
        never = ["alloc a 512", "capture_begin 0", "record_stream a 1", "capture_end 0", "record_stream a 2"]
        self.assertEqual(self.moved(never), never)
        unrouted = ["alloc a 512", "record_stream a 1", "free a"]
        self.assertEqual(self.moved(unrouted), unrouted)

    def test_2_15_knows_captures_of_the_current_stream_only(self):
        ops = ["capture_begin 1", "alloc a 512 1", "record_stream a 2", "alloc b 512 0", "free a", "capture_end 1"]
        self.assertEqual(self.moved(ops), ops)
        self.assertEqual(self.moved(ops, "2.15"), ops[:2] + [ops[3], ops[2]] + ops[4:])

    def test_an_id_that_is_used_again_is_another_block(self):
        ops = ["capture_begin 0", "alloc a 512", "record_stream a 1", "free a", "alloc a 512", "capture_end 0", "free a"]
        self.assertEqual(self.moved(ops), ops)


class Asked(unittest.TestCase):
    """The real one is asked again; only where it then agrees with ours was the difference the known defect."""

    OPS = ["capture_begin 0", "alloc a 512", "record_stream a 1", "capture_end 0", "free a", "alloc b 512"]
    LATE = OPS[:2] + [OPS[3], OPS[2]] + OPS[4:]

    def forgets(self, their_late, our_late, early=True):
        def answers(ops, is_free):
            last = {"ev": [["free_completed", "c1+0", 512, 0, 0, 0]]} if is_free else {}
            return [line(op, ptr="c1+0") if op.startswith("alloc a") else line(op, **(last if op.startswith("alloc b") else {})) for op in ops]

        def ask(is_free):
            def answer(options, flavour, config, addresses, script):
                self.assertEqual(script.decode().splitlines(), self.LATE)
                return answers(self.LATE, is_free)
            return answer

        kept = run.real, run.parkade
        run.real, run.parkade = ask(their_late), ask(our_late)
        try:
            script = "\n".join(self.OPS + ["stats"]).encode()
            options = type("Options", (), {"release": "2.11.0"})
            return run.forgets_a_use(options, "capture", "default", "up", script, answers(self.OPS, early), answers(self.OPS, False))
        finally:
            run.real, run.parkade = kept

    def test_only_a_difference_that_goes_away_is_the_defect(self):
        self.assertTrue(self.forgets(their_late=False, our_late=False))
        self.assertFalse(self.forgets(their_late=True, our_late=False), "it frees early all the same")
        self.assertFalse(self.forgets(their_late=True, our_late=True), "ours says something else to the other script")
        self.assertFalse(self.forgets(their_late=False, our_late=False, early=False), "nothing is freed early")


class Early(unittest.TestCase):
    """Which blocks the real one frees in an operation and ours does not."""

    def test_only_what_theirs_alone_frees(self):
        freed = lambda *blocks: line("alloc a 512", ev=[["free_completed", block, 512, 0, 0, 0] for block in blocks])
        self.assertEqual(run.freed_early(freed("c1+0", "c2+0"), freed("c2+0", "c3+0")), {"c1+0"})
        self.assertEqual(run.freed_early(freed("c2+0"), freed("c2+0")), set())


if __name__ == "__main__":
    unittest.main()
