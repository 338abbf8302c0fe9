"""`conserva.explain`: explanations of one input or a list of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, overload

from ..attribution import Method, MethodLike, find
from ..engine.memory import AUTO
from ..engine.rules import DEFAULT
from ..engine.targets import plain
from ..errors import Error
from ..replay.recorder import Recorder, recorder_of
from ..results.explanation import Explanation
from ..results.explanations import Explanations
from ..tasks.batches import budget
from ..tasks.task import Task, require_task
from ..tasks.user_inputs import inputs_of
from ..tasks.windows import window_size
from .explained import explained, provenance_of
from .windows import explain_in_windows

if TYPE_CHECKING:
    import numpy as np

    from ..datasets.graph import Graph


@overload
def explain(
    task: Task,
    inputs: str | tuple[Any, ...] | Graph | np.ndarray,
    target: Any = ...,
    *,
    method: MethodLike = ...,
    truncate: bool = ...,
    windows: bool | tuple[int, int] = ...,
    batch_tokens: int | None = ...,
    trusted: Collection[str] = ...,
    checkpoint: str = ...,
    fingerprint: bool = ...,
    progress: Callable[[int], None] | None = ...,
) -> Explanation: ...


@overload
def explain(
    task: Task,
    inputs: list[Any],
    target: Any = ...,
    *,
    method: MethodLike = ...,
    truncate: bool = ...,
    windows: bool | tuple[int, int] = ...,
    batch_tokens: int | None = ...,
    trusted: Collection[str] = ...,
    checkpoint: str = ...,
    fingerprint: bool = ...,
    progress: Callable[[int], None] | None = ...,
) -> Explanations: ...


def explain(
    task: Task,
    inputs: Any,
    target: Any = None,
    *,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    windows: bool | tuple[int, int] = False,
    batch_tokens: int | None = None,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Explanation | Explanations:
    """Explain a model's output for one input or a list of inputs.

    Parameters
    ----------
    task
        A task: the result of `conserva.load`, or an instance of `conserva.Text`, `conserva.Causal`, `conserva.Image`
        and so on, such as `conserva.Text(model, tokenizer)`.
    inputs
        A single input of the task: a text, a prompt or chat, an image, a pair of texts as ("premise", "hypothesis").
        Or several inputs as a list, a tuple, an array, a pandas Series or a generator: they are batched by length, and
        the explanations are in their order. A tuple of two texts is a pair, if the task takes pairs.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class. A list gives one target per input.
    method
        One of `conserva.methods()`, optionally with options, such as "ig:steps=100" or "random:seed=3"; or a custom
        rule set, such as `conserva.rules("exact", bilinear="half")`.
    truncate
        Whether to truncate texts that exceed the model's maximum length. Otherwise they raise an error.
    windows
        Whether to explain longer texts in windows, for text classifiers. True makes windows of the model's maximum
        length, of which a quarter overlaps; (length, overlap) are numbers of tokens. Each window is explained by
        itself. The explained output is the mean of the windows' outputs, and a token's score is the sum of its scores
        in all windows, divided by their number: the ledger, the mean of the windows' ledgers, adds up to the output.
        Of a pair, the second text is split.
    batch_tokens
        The maximum number of tokens in a batch, padding included. None chooses it by the device. A batch that does not
        fit into memory is halved. On a GPU, batch shapes that occur often are captured as a CUDA graph and replayed,
        with bitwise identical results; the graphs are freed when the call returns.
    trusted, checkpoint
        As in `conserva.relevance`. Only methods that are rule sets use them.
    fingerprint
        Whether to store a hash of the weights in `provenance`. This reads all weights once, which takes seconds for
        large models.
    progress
        Called after every batch with the number of inputs in it.

    Returns
    -------
    Explanation or Explanations
        An `Explanation` for a single input; `Explanations`, a sequence of them, for a list.

    Examples
    --------
    >>> task = conserva.load()
    >>> one = conserva.explain(task, "a joy.", "positive")
    >>> many = conserva.explain(task, ["a joy.", "a bore."], method="ah+ln")
    >>> len(many), many[0].target
    (2, 'positive')
    """
    require_task(task)
    chosen = find(method, trusted=trusted, checkpoint=checkpoint, tokens=task.special_ids)
    with recorder_of(task.model) as recorder:
        result = explain_with(
            recorder,
            task,
            inputs,
            target,
            chosen,
            truncate,
            batch_tokens,
            windows=windows,
            fingerprint=fingerprint,
            progress=progress,
        )
    return result if isinstance(result, Explanation) else Explanations(tuple(result))


def explain_with(
    recorder: Recorder | None,
    task: Task,
    inputs: Any,
    target: Any,
    method: Method,
    truncate: bool,
    batch_tokens: int | None,
    *,
    windows: bool | tuple[int, int] = False,
    fingerprint: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Explanation | list[Explanation]:
    """Implement `explain`. Batch shapes that `recorder` has captured as a CUDA graph are replayed."""
    target = plain(target)
    if callable(target):
        raise Error(
            f"target={target!r} is a function, which only conserva.relevance accepts: give a label, a class index or "
            "None."
        )
    tokens = budget(batch_tokens, task.model)
    many, is_one = inputs_of(task, inputs)
    if isinstance(target, list) and len(target) != len(many):
        raise Error(
            f"target is a list of {len(target)} for {len(many)} {task.noun}(s): give one target per {task.noun}, or a "
            "single target for all."
        )
    size = window_size(task, windows)
    if size is not None and truncate:
        raise Error(f"windows={windows!r} and truncate=True exclude each other: windows cover the whole text.")
    provenance = provenance_of(task, method, fingerprint)
    if size is None:
        encoded = task.encode_all(many, truncate=truncate)
        done = explained(task, method, encoded, target, tokens, recorder, provenance, progress)
    else:
        provenance["windows"] = list(size)
        done = explain_in_windows(
            task,
            task.encode_whole(many),
            target,
            size,
            tokens,
            lambda parts, targets: explained(task, method, parts, targets, tokens, recorder, provenance),
        )
        if progress is not None:
            progress(len(many))
    return done[0] if is_one else done
