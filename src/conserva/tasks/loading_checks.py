"""What `conserva.load` checks of every model, from files and in memory."""

from __future__ import annotations

from contextlib import suppress

from torch import nn

from ..errors import Error
from .seq2seq import Seq2Seq
from .task import Task


def refuse_head(task_class: type[Task], head: str | None, given: str) -> None:
    """Raise an `Error` if an output head was given for a model that is not a classifier."""
    kind = task_class.kind
    assert kind is not None
    if head is not None and not kind.classifies:
        raise Error(f"head={head!r} is for classifiers, but {given} is a {kind.noun}: leave it out.")


def check_ids(task: Task, given: str) -> None:
    """Raise if the tokenizer has ids beyond the model's embedding table. Added tokens may, as they may be unused."""
    tokenizer, network, table = task.preprocessors.get("tokenizer"), task.network, None
    with suppress(AttributeError, NotImplementedError):
        table = network.get_input_embeddings()  # type: ignore[operator]
    if tokenizer is None or not isinstance(table, nn.Embedding):
        return
    own = set(tokenizer.get_vocab().values()) - set(tokenizer.get_added_vocab().values())
    used = [*own, *tokenizer("a")["input_ids"]]
    if isinstance(task, Seq2Seq):
        with suppress(Error):  # the configuration may lack the start token, which then is needed only in use
            used += task.start
    if wrong := [token for token in used if not 0 <= token < table.num_embeddings]:
        raise Error(
            f"{given} has embeddings for {table.num_embeddings:,} tokens, but its tokenizer or generation_config.json "
            f"uses the id {max(wrong, key=abs)}: they belong to different models. Save them again with save_pretrained."
        )
