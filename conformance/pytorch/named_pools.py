"""Makes snapshots whose entries name their pools with a PyTorch that does not record them: before 2.12, no entry states which pool a request went to.

`tell()` makes PyTorch attach the pool's id to every entry as user metadata. `named(snapshot)` turns that into the `pool_id` of later releases.
Neither affects which memory PyTorch takes for a request.
"""

import ast
import bisect
import contextlib


def tell():
    """Makes PyTorch attach the pool's id, as metadata, to every entry from inside `use_mem_pool` or a capture."""
    import torch

    active = []

    def enter(pool):
        active.append(pool)
        torch.cuda.memory._set_memory_metadata(str(tuple(pool)))

    def leave():
        active.pop()
        torch.cuda.memory._set_memory_metadata(str(tuple(active[-1])) if active else "")

    use_mem_pool, graph = torch.cuda.use_mem_pool, torch.cuda.graph

    @contextlib.contextmanager
    def use(pool, device=None):
        with use_mem_pool(pool, device):
            enter(pool.id)
            try:
                yield
            finally:
                leave()

    class Graph(graph):
        def __enter__(self):
            super().__enter__()
            enter(self.cuda_graph.pool())

        def __exit__(self, *error):
            leave()
            return super().__exit__(*error)

    torch.cuda.use_mem_pool, torch.cuda.graph = use, Graph


def named(snapshot):
    """Returns the snapshot with a `pool_id` in every entry: for requests, from the metadata; for everything else, from the memory."""
    return {
        **snapshot,
        "device_traces": [trace_with_pools(trace, snapshot["segments"]) for trace in snapshot["device_traces"]],
    }


def trace_with_pools(trace, segments):
    # The pool of each range of memory that the trace took, by first address; the latest one counts.
    pools, starts, result = {}, [], []
    early = {segment["address"]: tuple(segment["segment_pool_id"]) for segment in segments}

    def at(address):
        place = bisect.bisect_right(starts, address)
        return pools[starts[place - 1]] if place else early.get(address, (0, 0))

    for entry in trace:
        action = entry["action"]
        told = ast.literal_eval(entry.get("user_metadata") or "(0, 0)")
        if action in ("segment_alloc", "segment_map"):
            if entry["addr"] not in pools:
                bisect.insort(starts, entry["addr"])
            pools[entry["addr"]] = told
        is_asked = action in ("segment_alloc", "segment_map", "oom")
        pool = told if is_asked else (0, 0) if action == "snapshot" else at(entry["addr"])
        result.append({**entry, "pool_id": pool})
    return result
