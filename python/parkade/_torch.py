"""PyTorch, imported where it is needed alone."""

from __future__ import annotations

from typing import Any

from ._errors import NoCuda


def cuda() -> Any:
    """The module `torch.cuda`, of a PyTorch that sees a GPU."""
    try:
        import torch
    except ImportError as error:
        raise NoCuda(
            f"PyTorch cannot be imported ({error}), and this needs it: the functions about recordings work without it"
        ) from error
    if not torch.cuda.is_available():
        raise NoCuda("PyTorch sees no GPU, and this needs one: the functions about recordings work without it")
    return torch.cuda
