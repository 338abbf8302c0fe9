"""The Trainer of transformers: a callback that explains the same examples at each evaluation."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .watching import Snapshot, Watching

__all__ = ["RelevanceCallback"]


class RelevanceCallback(Watching, TrainerCallback):
    """Explain the same examples before a training and after each evaluation, or each epoch if there is no evaluation.

    The training is bitwise the same as without the callback. An example that cannot be explained raises
    `conserva.Error` before the training; later, a warning and `history` tell of it. `history` has all explanations.
    With `report_to="mlflow"` or `"wandb"`, the numbers of each example, a page, a figure and a table are logged to the
    Trainer's run.

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
    >>> from conserva.integrations.trainer import RelevanceCallback
    >>> task = conserva.load()
    >>> callback = RelevanceCallback(task, ["a joy.", "a bore."], ["positive", "negative"])
    >>> trainer = transformers.Trainer(task.model, callbacks=[callback])  # doctest: +SKIP
    """

    _is_training = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model: nn.Module = given["model"]
        self._log(args, state, self._begin(model, state.global_step, state.epoch or 0.0))
        self._is_training = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if self._is_training:  # Trainer.evaluate may be called at any time
            self._evaluated(args, state)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if args.eval_strategy == "no":
            self._evaluated(args, state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._is_training = False

    def _evaluated(self, args: TrainingArguments, state: TrainerState) -> None:
        if state.is_world_process_zero:
            self._log(args, state, self._next(state.global_step, state.epoch or 0.0))

    def _log(self, args: TrainingArguments, state: TrainerState, snapshot: Snapshot | None) -> None:
        """Log what was explained to the runs that the Trainer logs to, in the first process."""
        if snapshot is None or not state.is_world_process_zero or not snapshot.explained:
            return
        if "mlflow" in (args.report_to or ()):
            from . import mlflow

            mlflow.write(snapshot.tracked, self.name, *mlflow.active(), snapshot.step)
        if "wandb" in (args.report_to or ()):
            from . import wandb

            wandb.write(snapshot.tracked, self.name, wandb.active(), None, {"train/global_step": snapshot.step})
