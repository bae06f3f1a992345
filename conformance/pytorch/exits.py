"""Ways in which a process can end, or continue, while it uses an allocator. Each is a function that runs in a separate process.

Each must end with exit status 0 and print nothing on standard error.
"""

import os
import subprocess
import sys

import allocators


def live_tensors():
    """Tensors, a MemPool, a graph and a pending free still exist when the interpreter ends."""
    import torch

    kept = globals()
    kept["tensors"] = [torch.full((1 << size,), 1.0, device="cuda") for size in range(8, 26, 3)]
    cycle = [torch.empty(1 << 20, device="cuda")]
    cycle.append(cycle)
    kept["pool"] = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(kept["pool"]):
        kept["pooled"] = torch.empty(1 << 22, device="cuda")
    kept["graph"] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(kept["graph"]):
        kept["captured"] = kept["tensors"][0] * 2
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)
    late = torch.empty(1 << 20, device="cuda")
    late.record_stream(side)
    del late


def history():
    """History is being recorded when the interpreter ends."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1000)
    globals()["tensor"] = torch.empty(1 << 20, device="cuda")


def out_of_memory():
    """The program catches the error and keeps it in a global variable until the end."""
    import torch

    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        globals()["error"] = error
    globals()["tensor"] = torch.empty(1 << 20, device="cuda")


def data_loader():
    """Forked workers that stay, and pinned memory; the parent has used CUDA before the fork."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    weight = torch.ones(64, 64, device="cuda")
    data = TensorDataset(torch.ones(512, 64))
    loader = DataLoader(
        data, batch_size=32, num_workers=2, persistent_workers=True, pin_memory=True, multiprocessing_context="fork"
    )
    for _ in range(2):
        for (batch,) in loader:
            total = (batch.cuda(non_blocking=True) @ weight).sum()
    assert total.item() == 32 * 64 * 64, total.item()
    globals()["loader"] = loader


def fork():
    """A child that does not use CUDA ends normally, with the parent's tensors in its memory; the parent continues."""
    import torch

    tensor = torch.ones(1 << 20, device="cuda")
    child = os.fork()
    if child == 0:
        torch.ones(1000).sum()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.sum().item() == 1 << 20
    assert torch.zeros(1 << 22, device="cuda").sum().item() == 0


def spawned():
    """A tensor is sent to another process, which uses the memory and ends before the parent does."""
    share(os.environ["PARKADE_ALLOCATOR"])


def spawned_across():
    """A tensor is sent to a process that uses the other allocator."""
    share(next(name for name in allocators.NAMES if name != os.environ["PARKADE_ALLOCATOR"]))


def spawned_under_policy():
    """The same under a policy whose handles have several sizes, on the way there and back."""
    share(os.environ["PARKADE_ALLOCATOR"])


spawned_under_policy.policy = "compaction"


def share(allocator):
    """Sends tensors to a process on the given allocator, which doubles them; they end in different handles. The process then sends its own tensor."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    there, back, done = context.Queue(), context.Queue(), context.Event()
    child = context.Process(target=double, args=(allocator, os.environ["PARKADE_ENABLED_POLICY"], there, back, done))
    child.start()
    tensors = [torch.ones(size, device="cuda") for size in (1000, 1 << 20, 50_000_000)]
    for tensor in tensors:
        there.put(tensor)
    received = back.get(timeout=120)
    torch.cuda.synchronize()
    for tensor in tensors:
        assert (tensor == 2).all().item(), tensor
    assert (received == 5).all().item(), received
    del received
    done.set()
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    assert tensors[2][-1].item() == 2


def double(allocator, policy, there, back, done):
    allocators.choose(allocator, policy)
    import torch

    received = [there.get() for _ in range(3)]
    for tensor in received:
        tensor.mul_(2)
    torch.cuda.synchronize()
    del received, tensor
    own = torch.full((1 << 22,), 5.0, device="cuda")
    back.put(own)
    assert done.wait(120)


def exception_in_capture():
    """An exception occurs in a capture; requests, another capture and a replay follow. The memory that the first capture took is returned."""
    import gc

    import torch

    x = torch.ones(1 << 20, device="cuda")
    for failure in (ValueError, KeyError):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                y = x * 2
                raise failure
        except failure:
            y = None
    gc.collect()
    y = torch.ones(1 << 22, device="cuda") + 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x * 3
    graph.replay()
    assert z[0].item() == 3 and y[0].item() == 2
    graph.reset()
    del graph, x, y, z
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()


def exit_in_capture():
    """The program exits in the middle of a capture."""
    import torch

    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        globals()["y"] = x * 2
        sys.exit(0)


def threads():
    """Threads allocate on their streams and free each other's tensors; one is still there when the interpreter ends."""
    import queue
    import threading

    import torch

    handed, ended = queue.Queue(64), threading.Event()

    def give():
        with torch.cuda.stream(torch.cuda.Stream()):
            for size in range(2000):
                handed.put(torch.empty(512 * (1 + size % 700), device="cuda"))

    def take():
        for _ in range(4 * 2000):
            handed.get()

    workers = [threading.Thread(target=give) for _ in range(4)] + [threading.Thread(target=take)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    handed = None
    threading.Thread(target=ended.wait, daemon=True).start()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()


CASES = (
    live_tensors,
    history,
    out_of_memory,
    data_loader,
    fork,
    spawned,
    spawned_across,
    spawned_under_policy,
    exception_in_capture,
    exit_in_capture,
    threads,
)
# Lines that PyTorch also writes to standard error when it runs on its own allocator.
KNOWN = (
    "The CUDA Graph is empty",
    "TracerWarning",
    "super().capture_end()",
    "multi-threaded, use of fork() may lead to deadlocks",
    "self.pid = os.fork()",
    "child = os.fork()",
)


def run(name, allocator):
    """Runs one case on an allocator, in this process and in those that it starts."""
    case = next(case for case in CASES if case.__name__ == name)
    policy = getattr(case, "policy", "pytorch")
    os.environ.update(PARKADE_ALLOCATOR=allocator, PARKADE_ENABLED_POLICY=policy)
    if policy != "pytorch":
        # A user-defined policy has no PyTorch settings.
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    allocators.choose(allocator, policy)
    case()


def outcome(command, environment, seconds=150):
    """Returns what is wrong with how a case ended, or an empty text."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return f"did not finish within {seconds} s"
    lines = [line for line in done.stderr.splitlines() if line.strip() and not any(known in line for known in KNOWN)]
    if done.returncode:
        return f"status {done.returncode}: {lines[-1] if lines else 'no message'}"
    return f"wrote {len(lines)} lines: {lines[-1]}" if lines else ""
