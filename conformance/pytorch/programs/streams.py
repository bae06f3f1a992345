"""Work on several streams with tensors that cross them. The GPU is idle whenever it matters which events have completed."""

import torch

LIMITED = True


def start(count=None):
    torch.manual_seed(11)
    draw = torch.Generator().manual_seed(12)
    streams = [torch.cuda.Stream() for _ in range(3)]
    weight, kept = torch.randn(1024, 1024, device="cuda") / 32, []

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=draw))

    def step(index):
        total = 0.0
        try:
            for _ in range(12):
                stream, other = streams[number(0, 3)], streams[number(0, 3)]
                with torch.cuda.stream(stream):
                    x = torch.full((number(64, 6000) * (count or 1), 1024), 0.5, device="cuda")
                    y = x @ weight
                other.wait_stream(stream)
                with torch.cuda.stream(other):
                    z = y.mean()
                # The block is freed while another stream may use it, so an event decides when it can be reused.
                y.record_stream(other)
                torch.cuda.synchronize()
                x = y = None
                # Here the event of the free completes, before the next request queries it.
                torch.cuda.synchronize()
                total += z.item()
                kept.append(z.expand(number(1, 2000), 1000).contiguous())
                while len(kept) > number(2, 8):
                    kept.pop(number(0, len(kept)))
            # A foreign stream reads z, which is freed when this function returns, so the read must have finished by then.
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            kept.clear()
            raise
        if index % 5 == 4:
            torch.cuda.empty_cache()
        return total

    return step
