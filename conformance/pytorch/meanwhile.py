#!/usr/bin/env python3
"""Rescues requests on the GPU while other work is in progress, and checks that nothing is lost.

  meanwhile.py                 every case, each in its own process
  meanwhile.py graph pinned    two of them

Each case fills 400 MiB so that PyTorch with expandable segments has no free page left, then asks for more. Exit codes: 0 all cases
hold; 1 one does not; 2 one could not be run.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import warnings

MIB = 1 << 20
LIMIT_MIB = 400


def limit(torch):
    torch.cuda.set_per_process_memory_fraction(
        (LIMIT_MIB * MIB + MIB) / torch.cuda.get_device_properties(0).total_memory
    )


def full(torch, mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def scatter(torch):
    """Leaves 5 MiB in use in each 20 MiB page, and returns what is in use."""
    blocks = [full(torch, 5, index) for index in range(76)]
    return blocks[1::4]


def is_kept(kept):
    return all(bool((block == 1 + 4 * index).all()) for index, block in enumerate(kept))


def rescues(torch):
    return torch.cuda.memory_stats().get("parkade_rescues", 0)


def graph(torch):
    """A graph is captured in memory that a rescue provides, and runs again after its own inputs and outputs were moved."""
    kept = scatter(torch)
    given = torch.zeros(MIB, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        more = full(torch, 100, 5)
        taken = torch.empty_like(given).copy_(given + more[0])
    during = rescues(torch)
    good = []
    for value, mib in [(1, 0), (2, 60), (3, 80)]:
        large = full(torch, mib, 9) if mib else None
        given.fill_(value)
        captured.replay()
        good.append(bool((taken == value + 5).all()) and bool((more == 5).all()))
        del large
    return {
        "holds": all(good) and is_kept(kept) and during > 0,
        "rescued in the capture": during,
        "rescued": rescues(torch),
    }


def pool(torch):
    """Requests of a MemPool are rescued."""
    kept = scatter(torch)
    private = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(private):
        large = full(torch, 200, 7)
    return {"holds": is_kept(kept) and bool((large == 7).all()) and rescues(torch) > 0, "rescued": rescues(torch)}


def backward(torch):
    """Requests of autograd's thread are rescued while the thread that called backward() waits."""
    kept = scatter(torch)
    leaf = torch.ones(10 * MIB, device="cuda", requires_grad=True)
    result = leaf * 2
    before = rescues(torch)
    filler = full(torch, 40, 1)
    result.backward(torch.ones(10 * MIB, device="cuda"))
    found = rescues(torch)
    return {
        "holds": is_kept(kept) and bool((leaf.grad == 2).all()) and found > before,
        "rescued": found,
        "filled": len(filler),
    }


def pinned(torch):
    """A thread pins memory and fills it, as that of a DataLoader does."""
    stop, failed, count = threading.Event(), [], [0]

    def pin():
        while not stop.is_set():
            page = torch.full((MIB,), count[0] % 100).pin_memory()
            if not page.is_pinned() or bool((page != count[0] % 100).any()):
                failed.append(count[0])
            count[0] += 1

    thread = threading.Thread(target=pin)
    thread.start()
    good = True
    for _ in range(20):
        kept = scatter(torch)
        large = full(torch, 200, 3)
        good = good and is_kept(kept) and bool((large == 3).all())
        del kept, large
        torch.cuda.empty_cache()
    stop.set()
    thread.join()
    return {"holds": good and not failed and rescues(torch) > 0, "rescued": rescues(torch), "pinned": count[0]}


def threads(torch):
    """Four threads allocate on their own streams; rescue="free" moves memory between them."""
    failed, served, refused = [], [0] * 4, [0] * 4

    def work(number):
        stream = torch.cuda.Stream()
        generator, held = random.Random(number), []
        with torch.cuda.stream(stream):
            for step in range(1500):
                if held and (len(held) > 12 or generator.random() < 0.5):
                    block, value = held.pop(generator.randrange(len(held)))
                    if bool((block != value).any()):
                        failed.append((number, step))
                    del block
                    continue
                try:
                    held.append((full(torch, generator.choice([1, 3, 7, 11, 24]), step), step))
                    served[number] += 1
                except torch.OutOfMemoryError:
                    refused[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    holds = not failed and rescues(torch) > 0
    return {"holds": holds, "rescued": rescues(torch), "served": sum(served), "refused": sum(refused)}


def replay(torch):
    """Another thread replays a graph continuously, which breaks the promise. Handles must not break then."""
    counter = torch.zeros(MIB, dtype=torch.int32, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(50):
            counter.add_(1)
    stop, replays = threading.Event(), [0]

    def run():
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                captured.replay()
                replays[0] += 1
            torch.cuda.synchronize()

    counter.zero_()
    kept = scatter(torch)
    thread = threading.Thread(target=run)
    thread.start()
    refused, large = 0, []
    for mib in [120, 60, 40]:
        try:
            large.append(full(torch, mib, 2))
        except torch.OutOfMemoryError:
            refused += 1
    stop.set()
    thread.join()
    torch.cuda.synchronize()
    right = bool((counter == replays[0] * 50).all())
    return {"holds": right and is_kept(kept), "rescued": rescues(torch), "refused": refused, "replays": replays[0]}


def receive(queue, answers):
    import torch

    block = queue.get()
    answers.put("open")
    queue.get()
    block.add_(1)
    torch.cuda.synchronize()
    answers.put("written")
    queue.get()


def shared(torch):
    """Another process has a tensor open and writes to it after a rescue."""
    context = torch.multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    kept = scatter(torch)
    child = context.Process(target=receive, args=(queue, answers))
    child.start()
    queue.put(kept[3])
    answers.get(timeout=60)
    large = full(torch, 200, 7)
    queue.put("write")
    answers.get(timeout=60)
    right = bool((kept[3] == 1 + 4 * 3 + 1).all())
    kept[3].sub_(1)
    queue.put("end")
    child.join()
    return {
        "holds": right and is_kept(kept) and bool((large == 7).all()) and rescues(torch) > 0,
        "rescued": rescues(torch),
    }


CASES = {case.__name__: case for case in (graph, pool, backward, pinned, threads, replay, shared)}


def attempt(name):
    import parkade

    if name == "threads":
        parkade.enable(rescue="free")
    else:
        parkade.enable(rescue=True, serial=True)
    import torch

    warnings.simplefilter("ignore")
    limit(torch)
    print(json.dumps(CASES[name](torch)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE", help=" ".join(CASES))
    parser.add_argument("--alone", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        attempt(options.alone)
        return 0
    code = 0
    for name in options.cases or CASES:
        child = subprocess.run([sys.executable, __file__, "--alone", name], capture_output=True, text=True)
        if child.returncode:
            print(f"{name:10} could not be run: {(child.stderr.strip().splitlines() or [str(child.returncode)])[-1]}")
            code = 2
            continue
        found = json.loads(child.stdout.strip().splitlines()[-1])
        holds = found.pop("holds")
        print(
            f"{name:10} {'holds' if holds else 'FAILS':6} "
            + ", ".join(f"{key} {value}" for key, value in found.items()),
            flush=True,
        )
        code = max(code, 0 if holds else 1)
    return code


if __name__ == "__main__":
    sys.exit(main())
