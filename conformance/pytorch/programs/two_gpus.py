"""Tensors on one GPU that are used by streams on a different one (`record_stream`). Both GPUs are idle whenever it matters which events have completed."""

import torch

LIMITED = False


def start():
    torch.manual_seed(21)
    draw = torch.Generator().manual_seed(22)
    # Two streams on each GPU: the default stream and another one.
    streams = [[torch.cuda.default_stream(device), torch.cuda.Stream(device)] for device in (0, 1)]
    kept = []

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=draw))

    def wait():
        for device in (0, 1):
            torch.cuda.synchronize(device)

    def step(index):
        total = 0.0
        for _ in range(12):
            home = number(0, 2)
            own, other = streams[home][number(0, 2)], streams[1 - home][number(0, 2)]
            with torch.cuda.stream(own):
                x = torch.full((number(16, 3000), 1024), 0.5, device=f"cuda:{home}")
            other.wait_stream(own)
            with torch.cuda.stream(other):
                y = x.to(f"cuda:{1 - home}", non_blocking=True)
                total += y.mean().item()
            x.record_stream(other)
            if number(0, 2):
                x.record_stream(streams[home][0])
            wait()
            x = y = None
            # Here the events of the frees complete, before the next request queries them.
            wait()
            kept.append(torch.ones(number(1, 2000), 1000, device=f"cuda:{number(0, 2)}"))
            while len(kept) > number(2, 8):
                kept.pop(number(0, len(kept)))
        if index % 5 == 4:
            torch.cuda.empty_cache()
        return total

    return step
