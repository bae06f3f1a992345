"""A program that exceeds its memory limit in every step, catches the error, and continues."""

import torch

from . import LIMIT_BYTES

LIMITED = False


def start():
    torch.manual_seed(15)
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES["fails"] / total_bytes)
    draw = torch.Generator().manual_seed(16)
    kept = []

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=draw))

    def step(index):
        try:
            while True:
                kept.append(torch.full((number(1, 40) << 18,), 1.0, device="cuda"))
                if number(0, 3) == 0:
                    kept.pop(number(0, len(kept)))
        except torch.OutOfMemoryError:
            # Drop half of the tensors at random; the rest makes holes.
            for _ in range(len(kept) // 2):
                kept.pop(number(0, len(kept)))
            if index % 3 != 2:
                raise
        if index % 6 == 5:
            # More than the device has; the message then has a different text.
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return float(len(kept))

    return step
