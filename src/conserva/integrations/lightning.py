"""Lightning: a callback that explains the same examples at each validation."""

from __future__ import annotations

from .._util.extras import require
from .watching import Snapshot, Watching

require("conserva.integrations.lightning", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger  # noqa: E402

__all__ = ["RelevanceCallback"]


class RelevanceCallback(Watching, Callback):  # type: ignore[misc]
    """Explain the same examples before a training and after each validation, or each epoch if there is no validation.

    The training is bitwise the same as without the callback. An example that cannot be explained raises
    `conserva.Error` before the training; later, a warning and `history` tell of it. `history` has all explanations. The
    trainer's loggers log the numbers of each example; an `MLFlowLogger` and a `WandbLogger` also a page, a figure and a
    table.

    Parameters
    ----------
    model
        The model that is trained, or the part of it that is explained: a transformers model, in any mode, with its
        `tokenizer`; or a task, such as `conserva.Text(model, tokenizer)`.
    inputs
        The examples: one input of the task, or a list.
    target
        What is explained, the same each time: a label, a class index, a contrast "a - b", or a list with one for each
        example.
    tokenizer
        The tokenizer, if `model` is not a task.
    method
        As in `conserva.explain`.
    name
        The name that the explanations are logged under.

    Examples
    --------
    >>> from conserva.integrations.lightning import RelevanceCallback
    >>> task = conserva.load()
    >>> callback = RelevanceCallback(task, ["a joy.", "a bore."], ["positive", "negative"])
    >>> trainer = lightning.Trainer(max_epochs=3, callbacks=[callback])  # doctest: +SKIP
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer, self._begin(pl_module, trainer.global_step, trainer.current_epoch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._evaluated(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation:
            self._evaluated(trainer)

    def _evaluated(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self._log(trainer, self._next(trainer.global_step, trainer.current_epoch))

    def _log(self, trainer: Trainer, snapshot: Snapshot | None) -> None:
        """Log what was explained to the trainer's loggers, in the first process."""
        if snapshot is None or not trainer.is_global_zero or not snapshot.explained:
            return
        step = snapshot.step
        for logger in trainer.loggers:
            if isinstance(logger, MLFlowLogger):
                from . import mlflow

                mlflow.write(snapshot.tracked, self.name, logger.experiment, logger.run_id, step)
            elif isinstance(logger, WandbLogger):
                from . import wandb

                wandb.write(snapshot.tracked, self.name, logger.experiment, None, {"trainer/global_step": step})
            else:
                logger.log_metrics({f"{self.name}/{key}": value for key, value in snapshot.metrics().items()}, step)
