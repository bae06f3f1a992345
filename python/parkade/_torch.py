"""Imports PyTorch, for the functions that need it."""

from __future__ import annotations

from typing import Any

from ._errors import NoCuda


def cuda() -> Any:
    """Returns the module `torch.cuda`. Raises `NoCuda` if PyTorch is missing or sees no GPU."""
    try:
        import torch
    except ImportError as error:
        raise NoCuda(
            f"PyTorch cannot be imported ({error}), and this needs it: the functions about recordings work without it"
        ) from error
    if not torch.cuda.is_available():
        raise NoCuda("PyTorch sees no GPU, and this needs one: the functions about recordings work without it")
    return torch.cuda
