"""Private pools: tensors in a MemPool, on two streams, nested with the default pool, and pools that are dropped while tensors live."""

import gc

import torch

LIMITED = True


def start():
    torch.manual_seed(13)
    draw = torch.Generator().manual_seed(14)
    pools, kept, side = [], [], torch.cuda.Stream()

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=draw))

    def fill():
        bytes_wanted = 1 << number(8, 27)
        kept.append(torch.full((bytes_wanted + 4 * number(0, 999),), number(0, 9), device="cuda", dtype=torch.uint8))

    def one():
        if len(pools) < 3:
            pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(pools[number(0, len(pools))]):
            fill()
            with torch.cuda.stream(side):
                fill()
        fill()
        torch.cuda.synchronize()
        if number(0, 8) == 0:
            pools.pop(number(0, len(pools)))
            gc.collect()
        while len(kept) > number(5, 25):
            kept.pop(number(0, len(kept)))

    def step(index):
        try:
            for _ in range(10):
                one()
            total = sum(tensor[:100].float().mean().item() for tensor in kept)
        except torch.OutOfMemoryError:
            kept.clear()
            raise
        if index % 6 == 5:
            torch.cuda.empty_cache()
        return total

    return step
