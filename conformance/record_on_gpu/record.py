#!/usr/bin/env python3
"""Records random programs on a real GPU and verifies the recordings.

  record.py OUT --seeds 61-64 [--jobs 8]       record into the folder OUT; needs PyTorch and a GPU
  record.py OUT --verify PARKADE               verify the recordings in OUT with this binary and print a table

There are five kinds of programs, drawn from the seed and each run under five settings: training with variable lengths, streams, CUDA
graphs that are reset, MemPools that are dropped, and a mix of all. With even seeds, and under garbage collection, the process has a
memory limit, which is in the recording's name in MiB. Each batch has two more recordings whose oldest entries are missing from the ring buffer.

Exit codes: 0 good, 1 a recording differs, 2 nothing could be recorded or verified.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import lzma
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "split": "max_split_size_mb:24",
    "pow2": "roundup_power2_divisions:4",
    "gc": "garbage_collection_threshold:0.6",
}
LIMITS_MIB = {"train": 700, "streams": 700, "graphs": 260, "mixed": 260, "pools": 400}


class Programs:
    """The programs. All random choices come from `draw`."""

    def __init__(self, kind, seed):
        import torch

        self.torch, self.cuda, self.draw = torch, torch.cuda, random.Random(seed * 7919 + len(kind))
        self.oom = torch.cuda.OutOfMemoryError
        torch.manual_seed(seed)

    def model(self, width, blocks):
        torch = self.torch
        nn, functional = torch.nn, torch.nn.functional

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

            def forward(self, x):
                heads = [
                    part.view(*part.shape[:2], 4, -1).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
                ]
                mixed = functional.scaled_dot_product_attention(*heads)
                x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
                return x + self.down(functional.gelu(self.up(self.second(x))))

        return nn.Sequential(*[Block() for _ in range(blocks)]).to("cuda")

    def random(self, *shape):
        return self.torch.randn(*shape, device="cuda")

    def bytes(self, count):
        return self.torch.empty(count, device="cuda", dtype=self.torch.uint8)

    def train(self):
        draw, cuda = self.draw, self.cuda
        width = draw.choice([256, 384, 512])
        model = self.model(width, draw.randint(3, 6))
        optimizer = self.torch.optim.AdamW(model.parameters())
        for _ in range(14):
            batch, length = draw.randint(2, 12), draw.choice([64, 100, 256, 333, 512])
            x = loss = None
            try:
                x = self.random(batch, length, width)
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=draw.random() < 0.7)
            except self.oom:
                x = loss = None
                optimizer.zero_grad()
                cuda.empty_cache()
            if draw.random() < 0.15:
                cuda.empty_cache()

    def streams(self):
        draw, cuda, torch = self.draw, self.cuda, self.torch
        model, streams, kept = self.model(512, 3), [cuda.Stream() for _ in range(3)], []
        for _ in range(60):
            stream = draw.choice(streams)
            x = y = z = None
            try:
                with cuda.stream(stream):
                    x = torch.empty(draw.randint(1, 24), draw.choice([32, 128, 400]), 512, device="cuda").normal_()
                    if draw.random() < 0.3:
                        cuda._sleep(draw.randint(10**5, 2 * 10**7))
                cuda.current_stream().wait_stream(stream)
                x.record_stream(cuda.current_stream())
                with torch.no_grad():
                    y = model(x)
                if draw.random() < 0.4:
                    other = draw.choice(streams)
                    other.wait_stream(cuda.current_stream())
                    with cuda.stream(other):
                        z = y * 2
                        y.record_stream(other)
                        kept.append(z)
                x = y = None
                while len(kept) > draw.randint(0, 6):
                    kept.pop(draw.randrange(len(kept)))
            except self.oom:
                kept.clear()
                x = y = z = None
            if draw.random() < 0.05:
                cuda.synchronize()
            if draw.random() < 0.04:
                cuda.empty_cache()

    def capture(self, model, side, pool):
        """Warms up and captures one step. Returns everything that must stay alive with the graph."""
        draw, cuda = self.draw, self.cuda
        x = self.random(draw.randint(1, 16), draw.choice([32, 64, 128, 200]), 256)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):
                model(x).sum().backward()
                model.zero_grad(set_to_none=True)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            y = model(x)
            loss = y.square().mean()
            loss.backward()
        model.zero_grad(set_to_none=True)
        return [graph, x, y, loss]

    def graphs(self):
        draw, cuda = self.draw, self.cuda
        model, graphs, side = self.model(256, draw.randint(2, 4)), [], cuda.Stream()
        pool = cuda.graph_pool_handle() if draw.random() < 0.6 else None
        for _ in range(draw.randint(3, 6)):
            try:
                graphs.append(self.capture(model, side, pool))
                for _ in range(2):
                    draw.choice(graphs)[0].replay()
                eager = [self.random(draw.randint(1, 4000), 1000) for _ in range(draw.randint(0, 8))]
                del eager
            except self.oom:
                graphs.clear()
                cuda.empty_cache()
            if graphs and draw.random() < 0.35:
                graphs.pop(draw.randrange(len(graphs)))[0].reset()
                if draw.random() < 0.5:
                    cuda.empty_cache()
        with self.torch.no_grad():
            model(self.random(4, 99, 256))

    def pools(self):
        draw, cuda = self.draw, self.cuda
        pools, kept = [], []
        for _ in range(90):
            what = draw.random()
            try:
                if what < 0.12 and len(pools) < 4:
                    pools.append(cuda.MemPool())
                elif what < 0.18 and pools:
                    pools.pop(draw.randrange(len(pools)))
                elif what < 0.55 and pools:
                    with cuda.use_mem_pool(draw.choice(pools)):
                        kept.extend(self.bytes(int(2 ** draw.uniform(8, 25.5))) for _ in range(draw.randint(1, 4)))
                elif what < 0.9:
                    kept.append(self.random(int(2 ** draw.uniform(6, 22.5))))
                else:
                    cuda.empty_cache()
            except self.oom:
                for _ in range(min(8, len(kept))):
                    kept.pop(draw.randrange(len(kept)))
            while len(kept) > draw.randint(6, 40):
                kept.pop(draw.randrange(len(kept)))

    def mixed(self):
        draw, cuda, torch = self.draw, self.cuda, self.torch
        model, pool, kept = self.model(256, 2), cuda.MemPool(), []
        graph = x = y = z = None
        for _ in range(25):
            what = draw.random()
            try:
                if what < 0.2:
                    with cuda.use_mem_pool(pool):
                        kept.append(self.bytes(draw.randint(1, 30) << 20))
                elif what < 0.35:
                    graph = None
                    x = self.random(draw.randint(1, 8), 64, 256)
                    with torch.no_grad():
                        model(x)
                    cuda.synchronize()
                    graph = cuda.CUDAGraph()
                    with torch.no_grad(), cuda.graph(graph):
                        y = model(x)
                    graph.replay()
                elif what < 0.5:
                    with cuda.stream(cuda.Stream()):
                        z = self.random(draw.randint(1, 3000), 2000)
                        cuda._sleep(5 * 10**6)
                    z.record_stream(cuda.current_stream())
                    z = None
                elif what < 0.85:
                    model(self.random(draw.randint(1, 20), draw.choice([64, 200]), 256)).sum().backward()
                elif what < 0.93:
                    cuda.empty_cache()
                else:
                    cuda.memory._snapshot()
            except self.oom:
                graph = x = y = z = None  # noqa: F841 - frees them
                kept.clear()
                cuda.empty_cache()
            if len(kept) > 4:
                kept.pop(draw.randrange(len(kept)))


def record(kind, setting, seed, limit_mib, folder):
    """Runs one program in this process and writes its recording."""
    if SETTINGS[setting]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[setting]
    import torch

    programs = Programs(kind, seed)
    torch.cuda.init()
    limit = ""
    if limit_mib:
        total = torch.cuda.get_device_properties(0).total_memory
        fraction = (limit_mib << 20) / total
        torch.cuda.set_per_process_memory_fraction(fraction)
        # PyTorch multiplies the fraction by the total again, which may give one byte less.
        limit = f".limit{limit_mib}-{int(fraction * total)}"
    entries = 1500 if kind == "tail" else 2_000_000
    torch.cuda.memory._record_memory_history(max_entries=entries, stacks="python", context=None)
    ended = ""
    try:
        getattr(programs, "train" if kind == "tail" else kind)()
    except Exception as error:  # An error in PyTorch ends the program too; the recording up to then counts.
        ended = f"{type(error).__name__}: {str(error)[:100]}"
    torch.cuda.synchronize()
    snapshot, statistics = torch.cuda.memory._snapshot(), dict(torch.cuda.memory_stats())
    name = f"{kind}.{setting}{limit}.{seed}"
    with lzma.open(folder / f"{name}.pickle.xz", "wb", preset=1) as file:
        pickle.dump(snapshot, file)
    (folder / f"{name}.stats.json").write_text(json.dumps(statistics))
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    print(
        name,
        len(entries),
        "entries,",
        sum(entry["action"] == "oom" for entry in entries),
        "out of memory",
        ended,
        flush=True,
    )


def batch(seeds):
    for seed in seeds:
        for kind, limit in LIMITS_MIB.items():
            for setting in SETTINGS:
                has_limit = setting == "gc" or (seed % 2 == 0 and setting != "pow2")
                yield kind, setting, seed, limit if has_limit else 0
    yield "tail", "default", seeds[-1] + 1, 0
    yield "tail", "expandable", seeds[-1] + 1, 0


def record_all(folder, seeds, jobs):
    folder.mkdir(parents=True, exist_ok=True)

    def one(job):
        command = [sys.executable, __file__, str(folder), "--one", *map(str, job)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            print(f"{job}: no recording was made, because the program took more than five minutes", flush=True)
            return False
        print(
            done.stdout.strip() or f"{job}: no recording was made; {done.stderr.strip().splitlines()[-1:]}", flush=True
        )
        return done.returncode == 0

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(one, batch(seeds)))


def verify_all(folder, parkade, more=()):
    def run(file):
        limit = re.search(r"limit\d+-(\d+)", file.name)
        command = [parkade, "verify", str(file), "--json", "--stats", str(file).replace(".pickle.xz", ".stats.json")]
        command += [*(["--limit", limit[1]] if limit else []), *more]
        return subprocess.run(command, capture_output=True, text=True)

    files, differing = sorted(folder.glob("*.pickle.xz")), 0
    verified = len(files)
    print("| recording | entries | mismatches | statistics that differ |\n|---|---|---|---|")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for file, done in zip(files, pool.map(run, files)):
            if done.returncode == 0:
                continue
            differing += 1
            found = json.loads(done.stdout) if done.stdout else {}
            differences = found.get("statistics") or {}
            # Differing statistics also count as mismatches.
            wrong = len(differences.get("differences", []))
            print(
                f"| {file.name} | {found.get('entries', '')} | {found.get('mismatches', done.stderr.strip())} | {wrong} |"
            )
    print(f"\n{verified - differing} of {verified} verify; the table lists the others")
    return verified, differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--seeds", default="1-2", help="the first and the last seed, as in 1-4 (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=8, help="programs that run at the same time (default: %(default)s)")
    parser.add_argument("--verify", metavar="PARKADE", help="verify the recordings in the folder with this binary")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = re.fullmatch(r"(\d+)(?:-(\d+))?", options.seeds)
    if not seeds or (seeds[2] and int(seeds[2]) < int(seeds[1])):
        parser.error(f"--seeds {options.seeds!r}: write the first and the last seed, as in 1-4")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: must be at least 1")
    if options.folder.exists() and not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    if options.one:
        kind, setting, seed, limit_mib = options.one
        record(kind, setting, int(seed), int(limit_mib), options.folder)
        return 0
    if options.verify:
        if not any(options.folder.glob("*.pickle.xz")):
            parser.error(f"{options.folder} has no recordings (*.pickle.xz)")
        if not os.access(options.verify, os.X_OK):
            parser.error(f"{options.verify} cannot be run")
        _, differing = verify_all(options.folder, options.verify)
        return int(differing > 0)
    if importlib.util.find_spec("torch") is None:
        parser.error("recording needs PyTorch; --verify verifies recordings without it")
    return (
        0 if record_all(options.folder, list(range(int(seeds[1]), int(seeds[2] or seeds[1]) + 1)), options.jobs) else 2
    )


if __name__ == "__main__":
    sys.exit(main())
