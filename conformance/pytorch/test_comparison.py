#!/usr/bin/env python3
"""Tests what same.py calls equal, on made-up reports. `test_comparison.py` runs them; they need neither PyTorch nor a GPU."""

import argparse
import contextlib
import copy
import io
import pathlib
import pickle
import tempfile
import unittest

import comparison
import named_pools
import programs
import same

MIB = 1 << 20


def entry(action, addr, size, stream=0, **more):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 7, **more}


def report(base=0x7F0000000000, stream=0x5550, **more):
    """A run with two segments and one free; `base` and `stream` are the values that the driver and PyTorch returned."""
    second = base - 64 * MIB
    entries = [
        entry("segment_alloc", base, 20 * MIB),
        entry("alloc", base, 2 * MIB),
        entry("segment_alloc", second, 2 * MIB, stream),
        entry("alloc", second + 512, 512, stream),
        entry("free_requested", base, 2 * MIB),
        entry("free_completed", base, 2 * MIB),
    ]
    block = {"address": second + 512, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
    segments = [
        {
            "device": 0,
            "address": second,
            "total_size": 2 * MIB,
            "stream": stream,
            "is_expandable": False,
            "blocks": [block],
        }
    ]
    snapshot = {"segments": segments, "device_traces": [entries], "allocator_settings": {"max_split_size": -1}}
    result = {
        "snapshot": snapshot,
        "stats": {"num_ooms": 0},
        "summary": "| one |\n| two |",
        "losses": ["0x1p+0"],
        "errors": [],
    }
    return {**result, "ended": "", "total_bytes": 1 << 37, **more}


def changed(change):
    result = report()
    change(result)
    return comparison.compare(report(), result)


class Compare(unittest.TestCase):
    def test_other_addresses_streams_and_times_are_equal(self):
        other = report(base=0x100000000, stream=0x99)
        for each in other["snapshot"]["device_traces"][0]:
            each["time_us"] += 3
        found = comparison.compare(report(), other)
        self.assertEqual(comparison.differences(found), 0, found)

    def test_a_place_elsewhere_in_the_segment_differs(self):
        def change(other):
            other["snapshot"]["device_traces"][0][1]["addr"] += 512

        found = changed(change)
        self.assertEqual((found["trace"], found["heap"]), (1, 0))
        self.assertEqual(found["texts"], ["entry 1: alloc: addr (0, 0) and (0, 512)"])

    def test_a_place_in_another_segment_differs(self):
        def change(other):
            other["snapshot"]["device_traces"][0][3]["addr"] += 64 * MIB

        self.assertEqual(changed(change)["trace"], 1)

    def test_another_stream_size_or_action_differs(self):
        for key, value in (("stream", 0), ("size", 1024), ("action", "free_requested")):
            self.assertGreater(
                changed(lambda other: other["snapshot"]["device_traces"][0][3].update({key: value}))["trace"], 0, key
            )

    def test_a_missing_entry_differs(self):
        found = changed(lambda other: other["snapshot"]["device_traces"][0].pop())
        self.assertEqual(found["trace"], 1)
        self.assertIn("one side has 6 and the other 5", found["texts"][0])

    def test_a_block_of_another_state_differs(self):
        found = changed(lambda other: other["snapshot"]["segments"][0]["blocks"][0].update(state="inactive"))
        self.assertEqual((found["trace"], found["heap"]), (0, 1))
        self.assertIn("block 0: state active_allocated and inactive", found["texts"][0])

    def test_a_statistic_that_one_side_lacks_differs(self):
        found = changed(lambda other: other.update(stats={}))
        self.assertEqual(found["stats"], 1)
        self.assertEqual(found["texts"], ["stats: num_ooms 0 and missing"])

    def test_the_last_bit_of_a_loss_the_summary_the_settings_and_the_end_count(self):
        self.assertEqual(changed(lambda other: other.update(losses=["0x1.0000000000001p+0"]))["losses"], 1)
        self.assertEqual(changed(lambda other: other.update(summary="| one |\n| 2 |"))["summary"], 1)
        self.assertEqual(
            changed(lambda other: other["snapshot"].update(allocator_settings={"max_split_size": 1}))["settings"], 1
        )
        self.assertEqual(changed(lambda other: other["snapshot"].update(external_annotations=[]))["keys"], 1)
        self.assertEqual(changed(lambda other: other.update(ended="RuntimeError"))["ended"], 1)


class Texts(unittest.TestCase):
    def message(self, process, free, used, tried="1.00 GiB"):
        return (
            f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 139.80 GiB of which {free} is free. "
            f"Process {process} has {used} memory in use. Of the allocated memory 1.00 GiB is allocated by PyTorch"
        )

    def test_other_processes_do_not_count(self):
        one, other = self.message(12, "3.00 MiB", "1.00 GiB"), self.message(77, "90.00 GiB", "2.50 GiB")
        self.assertEqual(comparison.normal_text(one), comparison.normal_text(other))

    def test_what_was_tried_counts(self):
        one, other = self.message(12, "3.00 MiB", "1.00 GiB"), self.message(12, "3.00 MiB", "1.00 GiB", "1.01 GiB")
        self.assertNotEqual(comparison.normal_text(one), comparison.normal_text(other))


class Expandable(unittest.TestCase):
    def test_a_segment_grows_shrinks_and_goes(self):
        base, page = 1 << 40, 2 * MIB
        entries = [
            entry("segment_map", base, page),
            entry("segment_map", base + page, page),
            entry("segment_unmap", base, page),
            entry("segment_map", base, page),
            entry("segment_unmap", base, 2 * page),
            entry("segment_map", base + 5 * page, page),
        ]
        common, _ = comparison.trace(entries, 1 << 37, comparison.Streams())
        self.assertEqual([each["addr"] for each in common], [(0, 0), (0, page), (0, 0), (0, 0), (0, 0), (1, 0)])

    def test_an_address_of_no_segment_is_said_to_be_one(self):
        common, _ = comparison.trace([entry("alloc", 4096, 512)], 1 << 37, comparison.Streams())
        self.assertEqual(common[0]["addr"], ("no known segment", 4096))


class Programs(unittest.TestCase):
    def test_each_program_says_whether_it_survives_a_limit(self):
        self.assertTrue(programs.is_limited("gpt2"))
        self.assertFalse(programs.is_limited("compile_reduce_overhead"))
        for name in programs.NAMES:
            self.assertIsInstance(programs.is_limited(name), bool)

    def test_the_name_says_the_limit_in_bytes(self):
        self.assertEqual(same.name_of("gpt2", "gc", 0, 1 << 37), "gpt2.gc")
        self.assertEqual(same.name_of("gpt2", "gc", 700 * MIB, 1 << 37), f"gpt2.gc.limit700-{700 * MIB}")

    def test_reports_are_not_changed_by_comparing(self):
        one = report()
        before = copy.deepcopy(one)
        comparison.compare(one, report())
        self.assertEqual(one, before)


class NamedPools(unittest.TestCase):
    def test_entries_have_the_pool_of_their_memory(self):
        pool, other = "(0, 3)", "(0, 4)"
        trace = [
            entry("segment_alloc", 1 << 30, 2 * MIB, user_metadata=pool),
            entry("alloc", 1 << 30, 512, user_metadata=pool),
            entry("segment_alloc", 1 << 31, 2 * MIB, user_metadata=""),
            entry("alloc", (1 << 31) + 512, 512, user_metadata=""),
            entry("free_requested", 1 << 30, 512, user_metadata=other),
            entry("segment_free", 1 << 30, 2 * MIB, user_metadata=""),
            entry("segment_alloc", 1 << 30, 2 * MIB, user_metadata=other),
            {"action": "oom", "device_free": 5, "size": 512, "stream": 0, "user_metadata": pool},
            entry("alloc", (1 << 30) + 512, 512, user_metadata=other),
        ]
        found = named_pools.named({"segments": [], "device_traces": [trace]})["device_traces"][0]
        self.assertEqual([each["pool_id"][1] for each in found], [3, 3, 0, 0, 3, 3, 4, 3, 4])
        self.assertEqual([{**each, "pool_id": 0} for each in found], [{**each, "pool_id": 0} for each in trace])


class Table(unittest.TestCase):
    def test_the_table_counts_what_differs_and_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            different = report(base=0x100000000, losses=["0x2p+0"])
            for side, name, each in [
                ("native", "a", report()),
                ("parkade", "a", report()),
                ("native", "b", report()),
                ("parkade", "b", different),
                ("native", "c", report()),
            ]:
                (out / side).mkdir(exist_ok=True)
                each["allocator"] = side
                (out / side / f"{name}.report").write_bytes(pickle.dumps(each))
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                differ, missing = same.compare_all(
                    argparse.Namespace(out=out, control=False, jobs=2), ["a", "b", "c", "d"]
                )
        self.assertEqual((differ, missing), (1, 2))
        self.assertIn("| a | 6 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |", shown.getvalue())
        self.assertIn("| b | 6 | 0 | 0 | 0 | 0 | 0 | 1 | 0 |", shown.getvalue())


if __name__ == "__main__":
    unittest.main()
