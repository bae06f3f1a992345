"""Callbacks for the trainers of transformers and Lightning. Each function imports the library when it is called."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ._errors import Error, NoCuda
from ._oom import PATH, on_oom
from ._run import Size
from ._watch import Watch


def _begin(path: str | os.PathLike[str] | None, limit: Size | None) -> None:
    """Calls `on_oom` if there is a GPU, so that a program with a callback also runs without a GPU."""
    if path is not None:
        with contextlib.suppress(NoCuda):
            on_oom(path, limit)


def _watch(writer: Any, limit: Size | None, share: float) -> Watch | None:
    try:
        return Watch(writer, share=share, limit=limit)
    except NoCuda:
        return None


def trainer_callback(
    writer: Any = None, *, path: str | os.PathLike[str] | None = PATH, limit: Size | None = "auto", share: float = 0.01
) -> Any:
    """Returns a `TrainerCallback` for `transformers.Trainer(callbacks=[...])`. It calls `on_oom(path, limit)` now and
    `watch` at each step.

    `writer` receives the numbers: a `SummaryWriter`, a wandb run or a function, as for `watch`. Without a writer,
    nothing is logged. `path=None` does not call `on_oom`. The callback spends at most `share` of the time. Without a
    GPU, it does nothing.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise Error(f"trainer_callback() needs transformers, which cannot be imported: {error}") from None

    class ParkadeCallback(TrainerCallback):  # type: ignore[misc]
        """Watches the allocator while a `Trainer` trains."""

        watch: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.watch = _watch(writer, limit, share)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.watch is not None:
                self.watch.step(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.watch is not None:
                self.watch.close()

    _begin(path, limit)
    return ParkadeCallback()


def lightning_callback(
    *, path: str | os.PathLike[str] | None = PATH, limit: Size | None = "auto", share: float = 0.01
) -> Any:
    """Returns a `Callback` for `lightning.Trainer(callbacks=[...])`. It calls `on_oom(path, limit)` now and `watch`
    after each batch.

    The trainer's loggers receive the numbers of `watch`. `path=None` does not call `on_oom`. The callback spends at
    most `share` of the time. Without a GPU, it does nothing.
    """
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        try:
            from pytorch_lightning.callbacks import Callback
        except ImportError as error:
            raise Error(f"lightning_callback() needs Lightning, which cannot be imported: {error}") from None

    class ParkadeCallback(Callback):  # type: ignore[misc]
        """Watches the allocator while a `Trainer` trains."""

        watch: Watch | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            def log(name: str, value: float, step: int) -> None:
                for logger in trainer.loggers:
                    logger.log_metrics({name: value}, step=step)

            self.watch = _watch(log, limit, share)

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if self.watch is not None:
                self.watch.step(trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.watch is not None:
                self.watch.close()

    _begin(path, limit)
    return ParkadeCallback()
