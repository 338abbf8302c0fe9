"""`conserva.explain`: explanations of one input, a list, or a stream of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from .._util.versions import versions
from ..attribution import Method, MethodLike, find
from ..engine.ledger import Ledger
from ..engine.memory import AUTO
from ..engine.rules import DEFAULT
from ..engine.targets import plain
from ..errors import Error
from ..replay.recorder import Recorder, recorder_of
from ..results.explanation import ClassScore, Explanation, Sink
from ..results.explanations import Explanations
from ..tasks.batches import budget, by_length
from ..tasks.task import Encoded, Task, require_task
from .launches import Batch, launched

if TYPE_CHECKING:
    import numpy as np

    from ..datasets.graph import Graph


MOST_CLASSES = 10
"""The number of classes in `Explanation.classes`, unless the target is another one."""

AT_ONCE = 512
"""The number of inputs that `explain_stream` reads ahead, so that inputs of similar length share a batch."""


@overload
def explain(
    task: Task,
    inputs: str | tuple[Any, ...] | Graph | np.ndarray,
    target: Any = ...,
    *,
    method: MethodLike = ...,
    truncate: bool = ...,
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
        A single input of the task: a text, a prompt or chat, an image, a pair of texts. Or a list of inputs, which are
        batched by length; the explanations are in the order of the list. A tuple is always a single input:
        ("premise", "hypothesis") is a pair.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class. A list gives one target per input.
    method
        One of `conserva.methods()`, optionally with options, such as "ig:steps=100" or "random:seed=3"; or a custom
        rule set, such as `conserva.rules("exact", bilinear="half")`.
    truncate
        Whether to truncate texts that exceed the model's maximum length. Otherwise they raise an error.
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
    chosen = find(method, trusted=trusted, checkpoint=checkpoint)
    with recorder_of(task.model) as recorder:
        result = explain_with(
            recorder, task, inputs, target, chosen, truncate, batch_tokens, fingerprint=fingerprint, progress=progress
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
    is_one = isinstance(inputs, tuple) or task.is_single(inputs)
    if not is_one and not isinstance(inputs, list):
        raise Error(
            f"inputs={inputs!r:.60} is neither a single {task.noun} that {task.name} accepts nor a list of them."
        )
    many = [inputs] if is_one else list(inputs)
    if isinstance(target, list) and len(target) != len(many):
        raise Error(
            f"target is a list of {len(target)} for {len(many)} {task.noun}(s): give one target per {task.noun}, or a "
            "single target for all."
        )
    encoded = task.encode_all(many, truncate=truncate)
    results: list[Explanation | None] = [None] * len(many)
    provenance = provenance_of(task, method, fingerprint)
    padded = {length: task.padded(length) for length in set(map(len, encoded))}
    lengths = [padded[len(item)] for item in encoded]
    for batch in launched(task, method, encoded, target, by_length(lengths, tokens), recorder):
        for i, explanation in zip(batch.rows, _explanations(task, method, batch, provenance), strict=True):
            results[i] = explanation
        if progress is not None:
            progress(len(batch.rows))
    done = [result for result in results if result is not None]
    return done[0] if is_one else done


def explain_stream(
    task: Task,
    inputs: Iterable[Any],
    target: Callable[[list[Any]], Any],
    *,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    fingerprint: bool = False,
) -> Iterator[Explanation]:
    """Yield the explanations of an iterable of inputs in order, holding at most `AT_ONCE` inputs in memory.

    Parameters
    ----------
    target
        Maps a list of inputs to their target, in the form that `explain` accepts.
    task, inputs, method, truncate, fingerprint
        As in `explain`.
    """
    chosen = find(method)
    with recorder_of(task.model) as recorder:
        rest = iter(inputs)
        while chunk := list(islice(rest, AT_ONCE)):
            many = explain_with(recorder, task, chunk, target(chunk), chosen, truncate, None, fingerprint=fingerprint)
            assert isinstance(many, list)
            yield from many


def _explanations(task: Task, method: Method, batch: Batch, provenance: Mapping[str, Any]) -> Iterator[Explanation]:
    """Yield an explanation for each input of a batch."""
    numbers = batch.read()
    scores, output, logits = numbers.scores.numpy(), numbers.output.tolist(), numbers.logits
    probabilities = task.head.probabilities(logits)
    top = logits.topk(min(MOST_CLASSES, logits.shape[-1])).indices.tolist()
    ledgers: Sequence[Ledger[float] | None] = [None] * len(output)
    if numbers.ledger is not None:
        ledgers = numbers.ledger.per_sample(numbers.output)
    for row, (encoded, target) in enumerate(zip(batch.encoded, batch.targets, strict=True)):
        index = class_of(task, target, encoded, top[row][0], logits.shape[-1])
        shown = top[row] if index is None or index in top[row] else [*top[row], index]
        feature_scores = tuple(scores[row][batch.columns[row]].tolist())
        yield Explanation(
            features=encoded.tokens,
            scores=feature_scores,
            special=encoded.special,
            words=encoded.words,
            text=encoded.text,
            target=task.target_title(target, index, encoded),
            output=output[row],
            probability=None if index is None or probabilities is None else float(probabilities[row, index]),
            ledger=ledgers[row],
            method=method.name,
            model=task.name,
            provenance={key: dict(value) if isinstance(value, dict) else value for key, value in provenance.items()},
            picture=encoded.picture,
            sections=encoded.sections,
            sink=None if encoded.sink is None else Sink.of(encoded.sink, encoded.tokens, feature_scores),
            offsets=encoded.offsets,
            unknown=encoded.unknown,
            classes=tuple(
                ClassScore(
                    task.target_title(None, i, encoded),
                    float(logits[row, i]),
                    None if probabilities is None else float(probabilities[row, i]),
                )
                for i in shown
                if probabilities is None or probabilities[row, i] > 0 or i == index  # impossible spans of a context
            ),
        )


def class_of(task: Task, target: Any, encoded: Encoded, highest: int, classes: int) -> int | None:
    """Return the class index of a target, or None if the target is not a single class.

    Parameters
    ----------
    target
        The target as given by the user. None means the predicted class, `highest`.
    highest
        The index of the highest logit.
    classes
        The number of logits.
    task, encoded
        The task and the encoded input, which resolve the target.
    """
    aimed = task.resolve_target(target, encoded)
    if aimed is None:
        return highest
    if isinstance(aimed, str):
        label = aimed.strip()
        known = task.labels.get(label)
        if known is not None or not label.removeprefix("-").isdecimal():
            return known
        aimed = int(label)
    return aimed % classes if isinstance(aimed, int) else None


def provenance_of(task: Task, method: Method, fingerprint: bool) -> dict[str, Any]:
    """Return the versions and settings that are needed to reproduce a result, with a weight hash if `fingerprint`."""
    dtype = str(next(task.model.parameters()).dtype).removeprefix("torch.")
    return {
        **versions(),
        **({"weights": task.fingerprint} if fingerprint else {}),
        "dtype": dtype,
        "rules": None if method.rules is None else method.rules.to_dict(),
        "head": task.head.name,
        "options": dict(method.options),
    }
