#!/usr/bin/env python3
"""Records programs on several streams, five runs of each under each of four settings: the recordings of docs/predictions.md.

    conformance/record_several_runs.py --out recordings first

It needs a GPU, PyTorch 2.11 or later and numpy, and took two minutes on an H200. The two sets differ in the number of steps
and in the sizes of batches. The folder gets PROGRAM.SETTING.RUN.pickle.xz, limits.txt and peaks.jsonl, and
`cargo run --release -p parkade-benches --example timing -- recordings` shows how accurate the predictions are.
The limit is a quarter above the allocated peak of the first run without a limit.
"""

import argparse
import json
import lzma
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

SETTINGS = {"default": "", "expandable": "expandable_segments:True", "split64": "max_split_size_mb:64", "limit": ""}
RUNS = 5


def streams(torch, count):
    return [torch.cuda.Stream() for _ in range(count)]


def double_buffer(torch, sizes, steps, least, most):
    """The next batch is copied while this one trains."""
    (side,) = streams(torch, 1)
    main = torch.cuda.current_stream()
    weights = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(6)]
    pinned = torch.randn(9000, 1024).pin_memory()

    def load():
        rows = int(sizes.integers(least, most))
        with torch.cuda.stream(side):
            return pinned[:rows].to("cuda", non_blocking=True) * 0.5

    following = load()
    for step in range(steps):
        main.wait_stream(side)
        batch = following
        batch.record_stream(main)
        following = load()
        hidden = batch
        for weight in weights:
            hidden = torch.relu(hidden @ weight)
        loss = hidden.square().mean()
        loss.backward()
        del hidden, batch
        for weight in weights:
            weight.grad = None
        if step % 10 == 9:
            loss.item()


def gradient_buckets(torch, sizes, steps, least, most):
    """Gradients are summed in buckets on another stream while the backward pass continues."""
    (side,) = streams(torch, 1)
    main = torch.cuda.current_stream()
    weight = torch.randn(1536, 1536, device="cuda")
    for step in range(steps):
        rows = int(sizes.integers(least, most))
        kept = [torch.randn(rows, 1536, device="cuda") for _ in range(10)]
        held, bucket = [], []
        while kept:
            active = kept.pop()
            gradient = (active.t() @ active) @ weight
            del active
            bucket.append(gradient)
            if len(bucket) == 3 or not kept:
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    flat = torch.cat([one.flatten() for one in bucket])
                    for one in bucket:
                        one.record_stream(side)
                    for _ in range(3):
                        flat = flat + flat * 0.001
                bucket = []
                held.append(flat)
        main.wait_stream(side)
        for flat in held:
            flat.record_stream(main)
            flat.mul_(0.5)
        del held, flat, gradient
        if step % 20 == 19:
            torch.cuda.synchronize()


def layer_prefetch(torch, sizes, steps, least, most):
    """Weights are copied from the host two layers ahead."""
    (side,) = streams(torch, 1)
    main = torch.cuda.current_stream()
    widths = [4, 4, 8, 4, 4, 12, 4, 4, 8, 4, 4, 16]
    host = [torch.randn(1024, 256 * width).pin_memory() for width in widths]
    for step in range(steps):
        hidden = torch.randn(int(sizes.integers(least, most)), 1024, device="cuda")
        waiting = []
        for place in range(len(widths) + 2):
            if place < len(widths):
                with torch.cuda.stream(side):
                    waiting.append(host[place].to("cuda", non_blocking=True))
            if place >= 2:
                weight = waiting.pop(0)
                main.wait_stream(side)
                wide = torch.relu(hidden @ weight)
                hidden = wide @ weight.t() * 0.001
                weight.record_stream(main)
                del weight, wide
        if step % 16 == 15:
            hidden.sum().item()


def serving(torch, sizes, steps):
    """Requests of any length on four streams."""
    four = streams(torch, 4)
    main = torch.cuda.current_stream()
    weight = torch.randn(512, 512, device="cuda")
    for turn in range(steps):
        results = []
        for _ in range(int(sizes.integers(2, 7))):
            stream = four[int(sizes.integers(0, 4))]
            rows = int(2 ** (8 + 6 * sizes.random()))
            prompt = torch.randn(rows, 512, device="cuda")
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                prompt.record_stream(stream)
                hidden = prompt
                for _ in range(6):
                    hidden = hidden @ weight * 0.01
                cache = torch.cat([hidden, hidden], dim=1)
                answer = cache[:, :512] * 2
            results.append((answer, stream))
            del prompt, hidden, cache, answer
        for answer, stream in results:
            main.wait_stream(stream)
            answer.record_stream(main)
        total = torch.cat([answer for answer, _ in results])
        del results, answer
        if turn % 12 == 11:
            total.sum().item()
        del total


def offload(torch, sizes, steps, least, most):
    """Activations are copied to the host and back."""
    out_stream, in_stream = streams(torch, 2)
    main = torch.cuda.current_stream()
    weight = torch.randn(1024, 1024, device="cuda")
    host = torch.empty(10, 4096, 1024).pin_memory()
    for step in range(steps):
        rows = int(sizes.integers(least, most))
        for place in range(10):
            active = torch.randn(rows, 1024, device="cuda") @ weight
            out_stream.wait_stream(main)
            with torch.cuda.stream(out_stream):
                host[place, :rows].copy_(active, non_blocking=True)
                active.record_stream(out_stream)
            del active
        for place in reversed(range(10)):
            in_stream.wait_stream(out_stream)
            with torch.cuda.stream(in_stream):
                back = host[place, :rows].to("cuda", non_blocking=True)
            main.wait_stream(in_stream)
            gradient = back @ weight
            gradient = gradient @ weight.t()
            back.record_stream(main)
            del back, gradient
        if step % 8 == 7:
            torch.cuda.synchronize()


def pipeline(torch, sizes, steps, least, most):
    """Three stages with one stream each."""
    three = streams(torch, 3)
    main = torch.cuda.current_stream()
    weights = [torch.randn(1024, 1024, device="cuda") for _ in three]
    for step in range(steps):
        kept = []
        for _ in range(6):
            hidden = torch.randn(int(sizes.integers(least, most)), 1024, device="cuda")
            before = main
            for stream, weight in zip(three, weights):
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    hidden.record_stream(stream)
                    for _ in range(3):
                        hidden = torch.relu(hidden @ weight) * 0.05
                before = stream
            kept.append(hidden)
            del hidden
        main.wait_stream(three[-1])
        for hidden in kept:
            hidden.record_stream(main)
            hidden @ weights[0]
        del kept, hidden
        if step % 10 == 9:
            torch.cuda.synchronize()


PROGRAMS = {
    body.__name__: body for body in (double_buffer, gradient_buckets, layer_prefetch, serving, offload, pipeline)
}

# The seed, and for each program its steps and the smallest and the largest number of rows per batch.
SETS = {
    "first": (
        77,
        {
            "double_buffer": (60, 1000, 9000),
            "gradient_buckets": (60, 300, 6000),
            "layer_prefetch": (70, 300, 5000),
            "serving": (120,),
            "offload": (50, 500, 4096),
            "pipeline": (40, 200, 5000),
        },
    ),
    "second": (
        4242,
        {
            "double_buffer": (75, 2500, 7000),
            "gradient_buckets": (75, 1500, 5000),
            "layer_prefetch": (64, 1200, 4000),
            "serving": (140,),
            "offload": (64, 1500, 4096),
            "pipeline": (52, 800, 4200),
        },
    ),
}


def one(torch, out, which, program, setting, run, limit_bytes):
    """Runs a program and writes its snapshot and a line with its peaks."""
    import numpy

    torch.cuda.init()
    total_bytes = torch.cuda.mem_get_info()[1]
    if limit_bytes:
        fraction = limit_bytes / total_bytes
        torch.cuda.set_per_process_memory_fraction(fraction)
        limit_bytes = int(fraction * total_bytes)
    torch.cuda.memory._record_memory_history(max_entries=250_000, stacks="python", context=None)
    seed, arguments = SETS[which]
    failed = None
    try:
        PROGRAMS[program](torch, numpy.random.default_rng(seed), *arguments[program])
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        failed = str(error)
    stats = torch.cuda.memory_stats()
    with open(out / "raw" / f"{program}.{setting}.{run}.pickle", "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    line = {
        "program": program,
        "setting": setting,
        "run": run,
        "torch": torch.__version__,
        "reserved_peak": stats["reserved_bytes.all.peak"],
        "allocated_peak": stats["allocated_bytes.all.peak"],
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "limit_bytes": limit_bytes,
        "failed": failed,
    }
    with open(out / "peaks.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def worker(out, which, setting):
    """Forks a process for each line `PROGRAM RUN LIMIT`, so that torch is imported once per setting and CUDA is
    started once per run.
    """
    import numpy  # noqa: F401
    import torch

    for line in sys.stdin:
        program, run, limit_bytes = line.split()
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            status = 1
            try:
                one(torch, out, which, program, setting, int(run), int(limit_bytes))
                status = 0
            except Exception:  # The parent continues with the next run.
                traceback.print_exc()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        print("done" if status == 0 else "failed", flush=True)


def start(out, which, setting):
    """A worker, with its settings in the environment, where PyTorch reads them."""
    environment = dict(os.environ)
    for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(key, None)
        if SETTINGS[setting]:
            environment[key] = SETTINGS[setting]
    command = [sys.executable, __file__, "--out", str(out), "--worker", setting, which]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lines(out):
    return [json.loads(line) for line in (out / "peaks.jsonl").read_text().splitlines()]


def record(out, which):
    workers = {setting: start(out, which, setting) for setting in SETTINGS}
    limits = {}
    for run in range(1, RUNS + 1):
        for program in PROGRAMS:
            for setting, process in workers.items():
                limit_bytes = limits[program] if setting == "limit" else 0
                process.stdin.write(f"{program} {run} {limit_bytes}\n")
                process.stdin.flush()
                if process.stdout.readline() != "done\n":
                    sys.exit(f"{program}.{setting}.{run} failed: see the error above")
                if program not in limits:
                    limits[program] = lines(out)[-1]["allocated_peak"] * 5 // 4
    for process in workers.values():
        process.stdin.close()


def compress(path):
    with lzma.open(path.parent.parent / f"{path.name}.xz", "wb") as file:
        file.write(path.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=SETS, default="first", help="which programs (default: first)")
    parser.add_argument(
        "--out", type=pathlib.Path, default="recordings", help="the folder to create (default: recordings)"
    )
    parser.add_argument("--worker", choices=SETTINGS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.out, given.set, given.worker)
        return
    raw = given.out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    (given.out / "peaks.jsonl").write_text("")
    # Compress at the end, because compression would take processor time from the programs.
    record(given.out, given.set)
    with ThreadPoolExecutor() as pool:
        list(pool.map(compress, raw.glob("*.pickle")))
    shutil.rmtree(raw)
    done = lines(given.out)
    limits = {f"{line['program']}.limit": line["limit_bytes"] for line in done if line["limit_bytes"]}
    (given.out / "limits.txt").write_text("".join(f"{name} {limit_bytes}\n" for name, limit_bytes in limits.items()))
    for program in PROGRAMS:
        for setting in SETTINGS:
            peaks = [
                line["reserved_peak"] >> 20 for line in done if (line["program"], line["setting"]) == (program, setting)
            ]
            print(program, setting, peaks, "MiB reserved")


if __name__ == "__main__":
    main()
