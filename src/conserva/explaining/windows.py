"""Explanations of long texts in windows.

Each window is explained by itself. The explained output is the mean of the windows' outputs, so the score of a token is
the sum of its scores in all windows, divided by the number of windows. The ledger is the mean of the windows' ledgers:
it adds up to the explained output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..engine.ledger import ENTRIES, Ledger
from ..engine.untouched import untouched
from ..results.explanation import Explanation, Window
from ..tasks.batches import by_length
from ..tasks.encoded_text import EncodedText
from ..tasks.task import Task
from ..tasks.windows import WindowSize, split_part, windows_of
from .explained import class_of, class_scores

Explain = Callable[[Sequence[EncodedText], list[Any]], list[Explanation]]
"""Explains encoded texts, each for its own target."""


def explain_in_windows(
    task: Task, whole: Sequence[EncodedText], target: Any, size: WindowSize, tokens: int, explain: Explain
) -> list[Explanation]:
    """Explain encoded texts of any length.

    Parameters
    ----------
    whole
        The texts, encoded without a limit of their length.
    target
        One target for all texts, or a list with one per text. None is the class with the highest mean output.
    size
        The size of the windows. Texts that fit into one are explained as by `conserva.explain` without windows.
    tokens
        The maximum number of tokens in a batch.
    explain
        Explains the windows.
    """
    split = [windows_of(text, size) for text in whole]
    parts = [
        text if len(windows) == 1 else text.part(window)
        for text, windows in zip(whole, split, strict=True)
        for window in windows
    ]
    owners = [i for i, windows in enumerate(split) for _ in windows]
    targets = target if isinstance(target, list) else [target] * len(whole)
    logits = _mean_logits(task, parts, owners, [i for i, windows in enumerate(split) if len(windows) > 1], tokens)
    aims = [_aim(task, targets[i], text, logits.get(i)) for i, text in enumerate(whole)]
    each = explain(parts, [aims[owner] for owner in owners])
    results, first = [], 0
    for i, (text, windows) in enumerate(zip(whole, split, strict=True)):
        own = each[first : first + len(windows)]
        first += len(windows)
        results.append(own[0] if len(windows) == 1 else _combined(task, text, windows, own, targets[i], logits[i]))
    return results


def _mean_logits(
    task: Task, parts: Sequence[EncodedText], owners: Sequence[int], several: Sequence[int], tokens: int
) -> dict[int, Tensor]:
    """Return the mean logits of the windows of each text that has several."""
    rows = [i for i, owner in enumerate(owners) if owner in set(several)]
    found: dict[int, list[Tensor]] = {i: [] for i in several}
    with untouched(task.model), torch.no_grad():
        for batch in by_length([len(parts[i]) for i in rows], tokens):
            output = task.model(**task.batch([parts[rows[i]] for i in batch])).logits.double().cpu()
            for i, row in zip(batch, output, strict=True):
                found[owners[rows[i]]].append(row)
    return {i: torch.stack(each).mean(0) for i, each in found.items()}


def _aim(task: Task, target: Any, text: EncodedText, logits: Tensor | None) -> Any:
    """Return the target of all windows of a text: by default, the class with the highest mean logit."""
    if target is not None or logits is None:
        return target
    task.resolve_target(None, text)  # raises if a target is required, as for several outputs of a regression
    return int(logits.argmax())


def _combined(
    task: Task,
    text: EncodedText,
    windows: Sequence[Sequence[int]],
    each: Sequence[Explanation],
    target: Any,
    logits: Tensor,
) -> Explanation:
    """Return the explanation of a text from those of its windows."""
    scores: list[list[float]] = [[] for _ in range(len(text))]
    for window, explanation in zip(windows, each, strict=True):
        for feature, score in zip(window, explanation.scores, strict=True):
            scores[feature].append(score)
    output = _mean([explanation.output for explanation in each])
    index = class_of(task, target, text, int(logits.argmax()), len(logits))
    probabilities = task.head.probabilities(logits[None])
    before, after = split_part(text)  # every window has what is outside: special tokens, and the first text of a pair
    return replace(
        each[0],
        features=text.tokens,
        scores=tuple(math.fsum(parts) / len(windows) for parts in scores),
        special=text.special,
        words=text.words,
        text=text.text,
        target=task.target_title(target, index, text),
        output=output,
        probability=None if index is None or probabilities is None else float(probabilities[0, index]),
        ledger=_mean_ledger([explanation.ledger for explanation in each], output),
        sections=text.sections,
        offsets=text.offsets,
        unknown=text.unknown,
        classes=class_scores(task, text, logits, None if probabilities is None else probabilities[0], index),
        windows=tuple(
            Window(window[before], window[after - len(text) - 1] + 1, own.output)
            for window, own in zip(windows, each, strict=True)
        ),
    )


def _mean_ledger(ledgers: Sequence[Ledger[float] | None], output: float) -> Ledger[float] | None:
    """Return the mean of the windows' ledgers; None if the method has none."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if not known:
        return None
    return Ledger.of(output, *(_mean([getattr(part, name) for part in known]) for name in ENTRIES[:-1]))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)
