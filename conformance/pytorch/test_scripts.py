#!/usr/bin/env python3
"""Tests how the scripts in this folder judge their measurements. `test_scripts.py` runs them; they need neither PyTorch nor a GPU."""

import argparse
import contextlib
import io
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import allocators
import endurance
import exits
import largest
import own_tests
import same
import short
import speed

REPORT = """<testsuites><testsuite>
<testcase classname="test_cuda.TestCuda" name="test_a"/>
<testcase classname="test_cuda.TestCuda" name="test_b"><failure message="AssertionError: 1&#10;more"/></testcase>
<testcase classname="inductor.test_trees.Trees" name="test_c"><skipped message="no"/></testcase>
<testcase classname="test_cuda.TestCuda" name="test_d"/>
<testcase classname="test_cuda.TestCuda" name="test_d"><error message="at the end"/></testcase>
</testsuite></testsuites>"""


class Short(unittest.TestCase):
    GOOD, SHORT, OTHER = ("completes", ["a"]), ("out of memory", []), ("completes", ["b"])

    def judged(self, answers, *words):
        """Returns the exit code if the runs of each program end this way, and the calls of `run`."""
        asked, answers = [], {name: iter(each) for name, each in answers.items()}

        def run(_, name, count, side, limit_bytes):
            asked.append((side, limit_bytes))
            answer = next(answers[name])
            if isinstance(answer, Exception):
                raise answer
            sizes = {"allocated": 1000 << 20, "reserved": 1 << 30, "retries": 0, "rescues": 0, "ms": 1.0}
            return {"ending": answer[0], "losses": answer[1], **sizes}

        words = ["short.py", *(words or ["gpt2", "4"]), "--times", "1.01"]
        with unittest.mock.patch.object(short, "run", run), unittest.mock.patch.object(sys, "argv", words):
            with contextlib.redirect_stdout(io.StringIO()):
                return short.main(), asked

    def test_the_policy_must_complete_where_expandable_segments_do_with_the_same_losses(self):
        def code(*endings, free=(self.GOOD, self.GOOD)):
            return self.judged({"gpt2": [*free, *endings]})[0]

        self.assertEqual(code(self.GOOD, self.GOOD), 0)
        self.assertEqual(code(self.SHORT, self.GOOD), 0)
        self.assertEqual(code(self.SHORT, self.SHORT), 0)
        self.assertEqual(code(self.OTHER, self.SHORT), 0)
        self.assertEqual(code(self.GOOD, self.SHORT), 1)
        self.assertEqual(code(self.GOOD, self.OTHER), 1)
        varying = (self.OTHER, self.GOOD)
        self.assertEqual(code(self.GOOD, self.OTHER, free=varying), 0)
        self.assertEqual(code(self.GOOD, self.SHORT, free=varying), 1)

    def test_a_program_that_never_fits_says_nothing(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.judged({"gpt2": [self.SHORT] * 2}), (2, [("default", 0)] * 2))
        self.assertIn("try a smaller batch", said.getvalue())

    def test_limits_are_whole_pages_and_no_less_than_asked_for(self):
        _, asked = self.judged({"gpt2": [self.GOOD] * 4})
        # 1,010 MiB in 2 MiB pages, and half a page for PyTorch's rounding.
        self.assertEqual(asked, [("default", 0)] * 2 + [("expandable", 1011 << 20), ("pytorch-rescue", 1011 << 20)])

    def test_a_program_that_fails_does_not_stop_the_others(self):
        for jobs in ("1", "3"):
            words = ["t5", "1", "gpt2", "4", "llama", "3", "--jobs", jobs]
            answers = {
                "t5": [RuntimeError("t5 broke")],
                "gpt2": [self.GOOD] * 4,
                "llama": [self.GOOD] * 3 + [self.SHORT],
            }
            with contextlib.redirect_stderr(io.StringIO()) as said:
                code, asked = self.judged(answers, *words)
            self.assertEqual((code, len(asked), said.getvalue()), (2, 9, "t5 broke\n"))
            del words[:2]
            self.assertEqual(self.judged({name: [*answer] for name, answer in answers.items()}, *words)[0], 1)

    def test_each_program_has_a_batch_size(self):
        self.assertEqual(short.pairs(["gpt2", "4", "ranks_ddp", "2"]), [("gpt2", 4), ("ranks_ddp", 2)])
        for words in (["gpt2"], ["gpt2", "4", "llama"], ["gpt2", "0"], ["gpt2", "-4"], ["4", "gpt2"], ["gpt3", "4"]):
            with self.assertRaises(ValueError, msg=words):
                short.pairs(words)

    def ranks(self, first, second, seconds=50):
        """Runs a program on two ranks, whose processes run this code."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "program.py"
            texts = "\n".join(f"if rank == {rank}: {code}" for rank, code in enumerate((first, second)))
            file.write_text(f"import json, os, sys, time\nrank = int(os.environ['RANK'])\n{texts}\n")
            with unittest.mock.patch.object(short, "__file__", str(file)):
                return short.run(argparse.Namespace(steps=1, seconds=seconds), "ranks_ddp", 2, "expandable", 0)

    def test_ranks_do_not_outlive_one_that_ended_early(self):
        def ends(ending, allocated):
            return f"print(json.dumps({{'ending': {ending!r}, 'losses': [], 'allocated': {allocated}}}))"

        found = self.ranks(ends("completes", 5), ends("completes", 7))
        self.assertEqual((found["ending"], found["allocated"]), ("completes", 7))
        # The other rank would wait for longer than one is given.
        self.assertEqual(self.ranks("time.sleep(100)", ends("out of memory", 7))["ending"], "out of memory")
        self.assertEqual(self.ranks("sys.exit('torn')", ends("out of memory", 7))["ending"], "out of memory")
        with self.assertRaisesRegex(RuntimeError, "ranks_ddp, expandable: broken"):
            self.ranks("sys.exit('broken')", "print('warning', file=sys.stderr, flush=True); time.sleep(100)")
        with self.assertRaisesRegex(RuntimeError, "no answer in 1 s"):
            self.ranks(ends("completes", 5), "time.sleep(100)", seconds=1)


class OwnTests(unittest.TestCase):
    def test_reports_are_read_and_errors_in_cleaning_up_count(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "report.xml"
            file.write_text(REPORT)
            found = own_tests.outcomes(file)
        self.assertEqual(found["test_cuda.py::TestCuda::test_a"], ("passed", ""))
        self.assertEqual(found["test_cuda.py::TestCuda::test_b"], ("failed", "AssertionError: 1"))
        self.assertEqual(found["inductor/test_trees.py::Trees::test_c"], ("skipped", "no"))
        self.assertEqual(found["test_cuda.py::TestCuda::test_d"], ("failed", "at the end"))

    def test_what_is_run_again_is_what_differs_fails_or_is_missing(self):
        one = {
            "f::a": ("passed", ""),
            "f::b": ("passed", ""),
            "f::c": ("failed", ""),
            "f::d": ("skipped", ""),
            "f::e": ("passed", ""),
        }
        other = {"f::a": ("passed", ""), "f::b": ("failed", ""), "f::c": ("failed", ""), "f::d": ("skipped", "")}
        self.assertEqual(own_tests.unsettled({"native": one, "parkade": other}), ["f::b", "f::c", "f::e"])


class Speed(unittest.TestCase):
    @staticmethod
    def sides(slower, spread, many=16, processes=6, seed=1):
        """Made-up times: steps of three lengths, each held up by up to a tenth; rounds differ by up to a half; sides of a process by `spread`; parkade takes `slower` times as long."""
        draw = random.Random(seed)
        shares, result = {"native": 1, "parkade": slower, "again": 1}, {"native": [], "parkade": [], "again": []}
        for _ in range(processes):
            rounds = [draw.uniform(1, 1.5) for _ in range(many)]
            for side, share in shares.items():
                own = share * (1 + draw.uniform(-spread, spread))
                result[side].append(
                    [[own * slow * step * (1 + draw.uniform(0, 0.1)) for step in (10, 30, 20)] for slow in rounds]
                )
        return result

    def test_one_percent_is_decided_where_sides_of_processes_agree(self):
        for slower, said in ((1.0, "met"), (0.5, "met"), (1.03, "missed")):
            middle, low, high = speed.ratio(self.sides(slower, 0.001, many=100), "parkade")
            self.assertAlmostEqual(middle, slower, delta=0.005)
            self.assertTrue(low <= middle <= high)
            self.assertEqual(speed.verdict(low, high, 1.01), said)

    def test_one_percent_is_open_where_they_differ_by_more(self):
        for seed in range(5):
            _, low, high = speed.ratio(self.sides(1.0, 0.1, seed=seed), "parkade")
            self.assertGreater(high - low, 0.03)
        self.assertEqual(speed.verdict(0.98, 1.02, 1.01), "open")

    def test_slow_moments_change_nothing(self):
        sides = self.sides(1.0, 0.001, many=100)
        for turn in (3, 4, 9):
            sides["parkade"][2][turn] = [8 * step for step in sides["parkade"][2][turn]]
        self.assertAlmostEqual(speed.ratio(sides, "parkade")[0], 1, delta=0.005)

    def test_the_interval_covers_the_truth(self):
        inside = 0
        for seed in range(40):
            _, low, high = speed.ratio(self.sides(1.0, 0.02, seed=seed), "again")
            inside += low <= 1 <= high
        self.assertGreaterEqual(inside, 36)

    def test_compiled_graphs_have_a_process_for_each_side_and_all_others_one(self):
        asked = []

        class Child:
            def __init__(self, options, what, place, sides, limit_bytes):
                asked.append((what, place, sides))
                self.sides = sides

            def line(self):
                return "ready\n"

            def block(self, first, steps):
                return {"ms": {side: [float(first)] * steps for side in self.sides}}

        with unittest.mock.patch.object(speed, "Process", Child):
            for what in ("gpt2", "compile_reduce_overhead"):
                place = speed.Place(None, what, 7, 0)
                self.assertEqual(place.block(3, 2), {"ms": {side: [3.0, 3.0] for side in speed.SIDES}})
        self.assertEqual(asked[0], ("gpt2", 7, ["native", "parkade", "again"]))
        self.assertEqual(asked[1:], [("compile_reduce_overhead", 7, [side]) for side in speed.SIDES])

    def test_limits_are_bytes_or_a_share(self):
        self.assertEqual([speed.limit(text) for text in ("8GiB", "1.05x", "0x")], [8 << 30, 1.05, 0])
        for text in ("x", "8", "one", "-1x", "0.5x", "nanx", "infx"):
            with self.assertRaises(argparse.ArgumentTypeError):
                speed.limit(text)

    def test_a_process_answers_between_what_its_program_prints(self):
        code = "print('hello'); print('ready', flush=True); [print('x\\n{\"a\": [1]}', flush=True) for line in __import__('sys').stdin]"
        process = speed.Process.__new__(speed.Process)
        process.child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.assertEqual(process.line(), "ready\n")
        self.assertEqual(process.block(1, 2), {"a": [1]})
        process.end()

    def test_targets(self):
        self.assertEqual(speed.target("gpt2, ms a step"), 1.01)
        self.assertEqual(speed.target("C++ pairs, 16 threads, 16 streams, ns a pair"), 0.5)
        self.assertEqual(speed.target("C++ pairs, 1 thread, ns a pair"), 1 / 3)


class Largest(unittest.TestCase):
    def test_the_largest_count_is_found_from_any_start_in_few_attempts(self):
        for most in range(120):
            for start in (1, 2, 30, 100, 250):
                asked = []

                def fits(count):
                    asked.append(count)
                    return count <= most

                self.assertEqual(largest.largest(fits, start), most)
                self.assertGreaterEqual(min(asked), 1)
                self.assertLessEqual(len(asked), 16)
                self.assertEqual(len(asked), len(set(asked)), "no count is tried twice")

    def test_the_least_memory_is_found_on_the_grid(self):
        for threshold in range(100, 260):
            asked = []

            def fits(limit):
                asked.append(limit)
                return limit >= threshold

            found = largest.least(fits, 100, 260, 5)
            self.assertTrue(threshold <= found < threshold + 5 or found == 260, (threshold, found))
            self.assertLessEqual(len(asked), 7)

    def runner(self, over, together_bytes=1 << 40):
        """A runner that computes instead: a batch of `n` takes `n` MiB of tensors, and each side needs that times its share."""
        options = argparse.Namespace(
            policies=["ours"], limit_bytes=100 << 20, together_bytes=together_bytes, jobs=8, steps=3, probe=(2, 4)
        )
        runner = largest.Runner(options)

        def carry_out(job):
            runner.log.append(job)
            need = int(job["count"] * over[job["side"]] * (1 << 20))
            fits = not job["limit_bytes"] or need <= job["limit_bytes"]
            return {
                "fits": fits,
                "losses": [job["count"]],
                "allocated_bytes": job["count"] << 20,
                "reserved_bytes": need,
            }

        runner.carry_out = carry_out
        return runner

    def test_each_side_has_its_largest_batch_and_its_least_memory(self):
        runner = self.runner({"default": 1.25, "expandable": 1.1, "ours": 1.0})
        self.assertEqual(largest.search(runner, "gpt2"), {"default": 80, "expandable": 90, "ours": 100})
        self.assertEqual(largest.same_losses(runner, "gpt2", {"ours": 100}), {"ours": True})
        found, load = largest.least_memory(runner, "gpt2", 80)
        self.assertEqual((load, found["ours"]), (80 << 20, 1.0))
        self.assertAlmostEqual(found["expandable"], 1.1, delta=0.03)
        self.assertAlmostEqual(found["default"], 1.25, delta=0.03)

    def test_a_process_too_large_for_the_gate_runs_alone(self):
        gate = largest.Gate(10)
        with gate.entered(25):
            self.assertEqual(gate.used_bytes, 25)
        with gate.entered(4), gate.entered(6):
            self.assertEqual(gate.used_bytes, 10)
        self.assertEqual(gate.used_bytes, 0)

    def test_sizes_are_whole_and_have_a_unit(self):
        self.assertEqual(largest.size("8GiB"), 8 << 30)
        for text in ("8", "0GiB", "1.5GiB", "GiB", "-1MiB"):
            with self.assertRaises(argparse.ArgumentTypeError):
                largest.size(text)


class Endurance(unittest.TestCase):
    GOOD = {
        "steps": 10,
        "out of memory": 3,
        "retries": 5,
        "allocated_bytes": 0,
        "reserved_bytes": 0,
        "active_bytes": 0,
        "lost_bytes": 1 << 20,
    }
    OPTIONS = argparse.Namespace(steps=10, seconds=60, tolerance_mib=32)

    def judge(self, **changes):
        return endurance.judge({**self.GOOD, **changes}, self.OPTIONS)

    def test_what_is_left_lost_or_not_done_is_wrong(self):
        self.assertEqual(self.judge(), [])
        for change in (
            {"allocated_bytes": 512},
            {"reserved_bytes": 1},
            {"active_bytes": 1},
            {"lost_bytes": 33 << 20},
            {"steps": 9},
        ):
            self.assertEqual(len(self.judge(**change)), 1, change)

    def test_a_run_without_failures_shows_nothing(self):
        self.assertIn("shows nothing", self.judge(**{"out of memory": 0, "retries": 0})[0])

    def test_ends(self):
        def end(code):
            return exits.outcome([sys.executable, "-c", code], allocators.environment(), seconds=20)

        self.assertEqual(end("print(1)"), "")
        self.assertEqual(end("import sys; print('TracerWarning', file=sys.stderr)"), "")
        self.assertEqual(end("import sys; print('oh', file=sys.stderr)"), "wrote 1 lines: oh")
        self.assertIn("status 3", end("import sys; sys.exit(3)"))
        self.assertIn("status -6", end("import os; os.abort()"))


class Settings(unittest.TestCase):
    def test_the_default_comes_first_where_a_limit_depends_on_it(self):
        def chosen(settings, limits):
            return same.unlimited(argparse.Namespace(settings=settings, limits=limits))

        self.assertEqual(chosen(["gc"], True), ["default"])
        self.assertEqual(chosen(["split", "gc"], True), ["default", "split"])
        self.assertEqual(chosen(["split", "default"], False), ["split", "default"])

    def test_a_child_has_no_settings_but_its_own(self):
        self.assertNotIn("PYTORCH_CUDA_ALLOC_CONF", allocators.environment())
        self.assertEqual(allocators.environment("a:1", RANK=1)["PYTORCH_CUDA_ALLOC_CONF"], "a:1")


if __name__ == "__main__":
    unittest.main()
