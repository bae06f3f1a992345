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
            f"this function needs PyTorch, which cannot be imported ({error}); the functions about recordings work "
            "without it"
        ) from error
    if not torch.cuda.is_available():
        raise NoCuda(
            "this function needs a GPU, but PyTorch sees none; the functions about recordings work without one"
        )
    return torch.cuda
