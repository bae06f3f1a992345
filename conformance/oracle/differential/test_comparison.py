#!/usr/bin/env python3
"""Tests what the differential test may tolerate and what it may not: python3 conformance/oracle/differential/test_comparison.py (or -m unittest)."""

import argparse
import json
import os
import tempfile
import unittest

import progress
import run
from compare import beginning_in_common, compare
from releases import BUILT, ROOT, program


def line(op, ok=1, **rest):
    return json.dumps({"op": op, "ok": ok, **rest})


def freed(*segments):
    """Segments that are returned: (segment's number, pool)."""
    return {
        "ev": [["segment_free", f"c{number}+0", 2 << 20, 0, *pool] for number, pool in segments],
        "drv": [["cudaFree", 0, f"c{number}"] for number, _ in segments],
    }


class Releases(unittest.TestCase):
    """Pools that nobody uses are released in a fixed order, which their ids decide."""

    def test_abandoned_pools_have_an_order(self):
        before = [line("pool_create 0 1"), line("pool_create 2 0"), line("pool_release 0 1"), line("pool_release 2 0")]
        theirs, ours = [(3, (2, 0)), (1, (0, 1))], [(1, (0, 1)), (3, (2, 0))]
        number, difference, tolerated = compare(
            *(before + [line("empty_cache", **freed(*side))] for side in (theirs, ours))
        )
        self.assertEqual((number, difference[0], tolerated), (4, "ev", 0))


def waits(*blocks):
    """Blocks that have been freed but are still pending."""
    return {"ev": [["free_requested", f"c{block}+0", 512, 0, 0, 0] for block in blocks]}


def completes(*blocks, **rest):
    return {"ev": [["free_completed", f"c{block}+0", 512, 0, 0, 0] for block in blocks], **rest}


def merges(peak, allocated, freed_in_all, current=1):
    return {"st": {"inactive_split.all": [current, peak, allocated, freed_in_all]}}


class Completions(unittest.TestCase):
    """Only blocks whose frees were deferred have no order among them, and only until nothing waits."""

    CAPTURED = [line("capture_begin 1"), line("free a", **waits(1)), line("free b", **waits(2)), line("capture_end 1")]
    ORDERS = [line("alloc c 512", **completes(1, 2)), line("alloc c 512", **completes(2, 1))]

    def differs(self, before, theirs, ours, profile="2.11"):
        theirs, ours = ([*before, *side] for side in (theirs, ours))
        number, difference, tolerated = compare(theirs, ours, profile)
        self.assertEqual(number is not None, difference is not None)
        return difference[0] if difference else tolerated

    def test_what_was_put_off_comes_in_any_order(self):
        for profile in ("2.11", "2.15"):
            self.assertEqual(self.differs(self.CAPTURED, self.ORDERS[:1], self.ORDERS[1:], profile), 1)
        routed = [
            text.replace("capture_begin 1", "pool_begin 1 0 all").replace("capture_end 1", "pool_end 1 0")
            for text in self.CAPTURED
        ]
        self.assertEqual(self.differs(routed, self.ORDERS[:1], self.ORDERS[1:]), 1)
        self.assertEqual(
            self.differs(routed, self.ORDERS[:1], self.ORDERS[1:], "2.15"),
            "ev",
            "2.15 defers nothing because of a recording",
        )

    def test_all_others_have_an_order(self):
        before, between = (
            [line("free a", **waits(1)), line("free b", **waits(2))],
            [line("capture_begin 1"), line("capture_end 1")],
        )
        for script in (before, between + before, before + between, [before[0], between[0], before[1], between[1]]):
            self.assertEqual(self.differs(script, self.ORDERS[:1], self.ORDERS[1:]), "ev")

    def test_the_order_counts_again_once_nothing_waits(self):
        settled = [
            *self.CAPTURED,
            line("alloc c 512", **completes(1, 2)),
            line("free a", **waits(1)),
            line("free b", **waits(2)),
        ]
        self.assertEqual(self.differs(settled, self.ORDERS[:1], self.ORDERS[1:]), "ev")
        left = [*self.CAPTURED, line("alloc c 512", **completes(1)), line("free a", **waits(1))]
        self.assertEqual(self.differs(left, self.ORDERS[:1], self.ORDERS[1:]), 1, "one still waits")

    def test_what_a_restore_leaves_waiting_comes_in_any_order(self):
        restore = lambda *blocks: [line("ckpt_load k", freed=[], allocd=[], **waits(*blocks))]
        self.assertEqual(self.differs(restore(1, 2), self.ORDERS[:1], self.ORDERS[1:]), 1)
        self.assertEqual(
            self.differs([*restore(1), line("free b", **waits(2))], self.ORDERS[:1], self.ORDERS[1:]), "ev"
        )

    def test_counters_of_merging_part_only_where_the_order_shows(self):
        shows = [
            line("alloc c 512", **completes(1, 2), **merges(4, 9, 8)),
            line("alloc c 512", **completes(2, 1), **merges(5, 8, 7)),
        ]
        later = lambda *numbers, **more: line("free c", **merges(*numbers, **more))
        differs = lambda theirs, ours, first=shows: self.differs(self.CAPTURED, [first[0], theirs], [first[1], ours])
        self.assertEqual(differs(later(4, 10, 8, current=2), later(5, 9, 7, current=2)), 1)
        self.assertEqual(
            differs(later(9, 17, 9, current=9), later(9, 16, 8, current=9)), 1, "a new peak counts for both"
        )
        self.assertIn(
            "no order shows", differs(later(4, 10, 8, current=2), later(5, 10, 7, current=2)), "more was allocated"
        )
        self.assertIn(
            "no order shows", differs(later(4, 9, 9, current=0), later(6, 8, 8, current=0)), "a separate peak"
        )
        self.assertIn(
            "no order shows", differs(later(6, 9, 9, current=0), later(5, 8, 8, current=0)), "a separate peak"
        )
        self.assertEqual(differs(later(4, 10, 9, current=1), later(5, 9, 8, current=2)), "st inactive_split.all")
        same = [shows[0], shows[0].replace("[1, 4, 9, 8]", "[1, 5, 8, 7]")]
        self.assertEqual(differs(later(4, 10, 8), later(5, 9, 7), same), "st inactive_split.all", "no order is visible")

    def test_counters_that_are_reset_are_equal_again(self):
        shows = [
            line("alloc c 512", **completes(1, 2), **merges(4, 9, 8)),
            line("alloc c 512", **completes(2, 1), **merges(5, 8, 7)),
        ]
        differs = lambda op, theirs, ours: self.differs(
            self.CAPTURED, [shows[0], line(op, **theirs)], [shows[1], line(op, **ours)]
        )
        self.assertEqual(differs("reset_peak", merges(1, 9, 8), merges(1, 8, 7)), 1)
        self.assertEqual(differs("reset_accumulated", merges(4, 0, 0), merges(5, 0, 0)), 1)
        self.assertIn("no order shows", differs("reset_peak", merges(1, 9, 8), merges(2, 8, 7)))
        self.assertIn("no order shows", differs("reset_accumulated", merges(4, 1, 0), merges(5, 0, 0)))


class LateUses(unittest.TestCase):
    """The script in which no use is remembered beyond the capture in which it was recorded."""

    def moved(self, ops, profile="2.11", **failing):
        answers = [line(op, ptr="c1+0", **failing) if op.startswith("alloc") else line(op) for op in ops]
        return run.with_late_uses(ops, answers, profile)

    def test_a_use_is_recorded_anew_just_before_its_block_is_given_back(self):
        ops = [
            "pool_begin 1 0 all",
            "alloc a 512",
            "record_stream a 1",
            "record_stream b 2",
            "pool_end 1 0",
            "alloc c 512",
            "free a",
            "free c",
        ]
        expected = [
            "pool_begin 1 0 all",
            "alloc a 512",
            "record_stream b 2",
            "pool_end 1 0",
            "alloc c 512",
            "record_stream a 1",
            "free a",
            "free c",
        ]
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
        ops = [
            "capture_begin 0",
            "alloc a 512",
            "record_stream a 1",
            "free a",
            "alloc a 512",
            "capture_end 0",
            "free a",
        ]
        self.assertEqual(self.moved(ops), ops)


class Asked(unittest.TestCase):
    """The real one is run again; only if it then agrees with ours was the difference the known defect."""

    OPS = ["capture_begin 0", "alloc a 512", "record_stream a 1", "capture_end 0", "free a", "alloc b 512"]
    LATE = OPS[:2] + [OPS[3], OPS[2]] + OPS[4:]

    def forgets(self, their_late, our_late, early=True):
        def answers(ops, is_free):
            last = {"ev": [["free_completed", "c1+0", 512, 0, 0, 0]]} if is_free else {}
            return [
                line(op, ptr="c1+0")
                if op.startswith("alloc a")
                else line(op, **(last if op.startswith("alloc b") else {}))
                for op in ops
            ]

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
            return run.forgets_a_use(
                options, "capture", "default", "up", script, answers(self.OPS, early), answers(self.OPS, False)
            )
        finally:
            run.real, run.parkade = kept

    def test_only_a_difference_that_goes_away_is_the_defect(self):
        self.assertTrue(self.forgets(their_late=False, our_late=False))
        self.assertFalse(self.forgets(their_late=True, our_late=False), "it still frees early")
        self.assertFalse(self.forgets(their_late=True, our_late=True), "our answer to the other script is different")
        self.assertFalse(self.forgets(their_late=False, our_late=False, early=False), "nothing is freed early")


class Early(unittest.TestCase):
    """The blocks that the real one frees in an operation and ours does not."""

    def test_only_what_theirs_alone_frees(self):
        freed = lambda *blocks: line("alloc a 512", ev=[["free_completed", block, 512, 0, 0, 0] for block in blocks])
        self.assertEqual(run.freed_early(freed("c1+0", "c2+0"), freed("c2+0", "c3+0")), {"c1+0"})
        self.assertEqual(run.freed_early(freed("c2+0"), freed("c2+0")), set())


class Beginnings(unittest.TestCase):
    """A common beginning is read once for several comparisons, and this changes the result of none of them."""

    def test_a_beginning_changes_no_answer(self):
        sides = [Completions.CAPTURED + [order, line("snapshot")] for order in Completions.ORDERS]
        for changed in (None, 4, 5):
            theirs, ours = ([*side] for side in sides)
            if changed is not None:
                ours[changed] = line("free z")
            runs = [theirs, ours, theirs[:]]
            start = beginning_in_common(runs, "2.11")
            self.assertEqual(start[0], 4)
            for _ in range(2):
                self.assertEqual(compare(theirs, ours, "2.11", start), compare(theirs, ours, "2.11"))
                self.assertEqual(compare(theirs, theirs[:], "2.11", start), (None, None, 0))


class Digests(unittest.TestCase):
    """Text is left out only if every line of every run has the same digest."""

    ONE, OTHER = (b"0123456789abcdef\n" + digest for digest in (b"0000000000000000\n", b"0000000000000001\n"))

    def alike(self, flavour, ours, *theirs, length=2):
        theirs = list(theirs)

        def digests(options, flavour, config, addresses, path, is_real, more=()):
            self.assertEqual(bool(more), is_real and len(theirs) < count)
            return theirs.pop(0) if is_real else ours

        count, kept = len(theirs), run.digests
        run.digests = digests
        try:
            return run.are_alike(argparse.Namespace(aslr=2), flavour, "default", "up", "script", length)
        finally:
            run.digests = kept

    def test_all_runs_must_be_alike_to_their_end(self):
        one, other = self.ONE, self.OTHER
        self.assertTrue(self.alike("basic", one, one))
        self.assertFalse(self.alike("basic", one, other))
        self.assertFalse(self.alike("basic", one, None), "the real allocator did not reach the end")
        self.assertFalse(self.alike("basic", None, None), "neither did")
        self.assertFalse(self.alike("basic", one, one, length=3), "both ended early")
        self.assertTrue(self.alike("pools", one, one, one, one))
        self.assertFalse(self.alike("pools", one, one, one, other), "runs of the real allocator differ")


class Progress(unittest.TestCase):
    """Tests the file that records what was compared."""

    def test_it_is_summed_and_says_what_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "compared.jsonl")
            options = argparse.Namespace(
                progress=path,
                release="2.7.1",
                flavours="basic,oom",
                seeds=range(1, 3),
                n=10,
                rotate=0,
                configs="default,exp",
                addresses="up",
            )
            every = [("basic", 1), ("oom", 1), ("basic", 2), ("oom", 2)]
            self.assertEqual(progress.left(options), every)
            progress.keep(
                options,
                "basic",
                1,
                [("a", 17, 0, None, None), ("b", 5, 2, None, "the real allocator's heap is damaged")],
            )
            progress.keep(
                argparse.Namespace(**{**vars(options), "release": "2.7.0"}),
                "basic",
                2,
                [("c", 3, 0, "line 3: ok", None)],
            )
            with open(path, "a", encoding="utf-8") as file:
                file.write('{"release": "2.7.')
            self.assertEqual(progress.sums(path), [("2.7", 2, 3, 25, 2, 1, 1)])
            changed = lambda **changes: progress.left(argparse.Namespace(**{**vars(options), **changes}))
            self.assertEqual(changed(), every[1:])
            self.assertEqual(changed(release="2.7.0"), [place for place in every if place != ("basic", 2)])
            for other in (
                changed(n=20),
                changed(configs="default"),
                changed(addresses="up,down"),
                changed(progress=None),
            ):
                self.assertEqual(other, every)


PARKADE = os.environ.get("PARKADE", os.path.join(ROOT, "target", "release", "parkade"))
ORACLE = os.environ.get("ORACLE", BUILT)


@unittest.skipUnless(
    os.access(PARKADE, os.X_OK) and os.access(program("2.7.0", ORACLE), os.X_OK), "the programs are not built"
)
class WrongRelease(unittest.TestCase):
    """A parkade that decides like a different release is detected by its digests, and the difference is shown."""

    def found(self, profile, flavour, config):
        with tempfile.TemporaryDirectory() as folder:
            wrong = os.path.join(folder, "parkade")
            with open(wrong, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {PARKADE} "$@" --profile {profile}\n')
            os.chmod(wrong, 0o755)
            options = argparse.Namespace(
                release="2.7.0",
                oracle=ORACLE,
                parkade=wrong,
                n=1500,
                rotate=0,
                configs=config,
                addresses="up",
                aslr=4,
                bridge=None,
            )
            command = run.programs.command
            run.programs.command = lambda *arguments: command(*arguments)[:-2]
            try:
                return [where for *_, where, _ in run.one(options, flavour, 3)]
            finally:
                run.programs.command = command

    def test_only_the_right_one_is_alike(self):
        for flavour, config in (("basic", "default"), ("oom", "exp"), ("pools", "default")):
            self.assertEqual(self.found("2.7", flavour, config), [None], f"{flavour} {config}")
        for profile, flavour, config in (
            ("2.12", "basic", "default"),
            ("2.4", "oom", "exp"),
            ("2.13", "pools", "default"),
        ):
            self.assertRegex(
                self.found(profile, flavour, config)[0] or "nothing", r"line \d+: ", f"{profile} {flavour} {config}"
            )


if __name__ == "__main__":
    unittest.main()
