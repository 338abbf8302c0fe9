"""From inputs to explanations."""

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
from ..results.explanation import Explanation, Sink
from ..results.explanations import Explanations
from ..tasks.batches import budget, by_length
from ..tasks.task import Encoded, Task
from .launches import Batch, launched

if TYPE_CHECKING:
    import numpy as np

    from ..datasets.graph import Graph


AT_ONCE = 512
"""How many inputs of a stream are explained together, those of equal length side by side."""


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
    """Explain one input, or many.

    Parameters
    ----------
    task
        What `conserva.load` returned, or a task made by hand: `conserva.Text(model, tokenizer)`, `conserva.Causal`,
        `conserva.Image` and so on.
    inputs
        One input, as the task takes it: a text, a prompt or chat, an image, a pair of texts. Or a list of inputs, which
        are batched by length; their explanations keep the order. A tuple is always one input: ("premise",
        "hypothesis") is a pair.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class. A list has one for each input.
    method
        One of `conserva.methods()`, with options as in "ig:steps=100" or "random:seed=3"; or a rule set of your own,
        `conserva.rules("exact", bilinear="half")`.
    truncate
        Whether texts longer than the model takes are cut; otherwise they are refused.
    batch_tokens
        The number of tokens in a batch: its rows times the length of the longest. None chooses by the device. A batch
        that does not fit into memory is halved. On a GPU, batches of a shape that comes often are recorded as a CUDA
        graph and replayed, with bitwise the same results, until this call returns.
    trusted, checkpoint
        As in `conserva.relevance`, for methods that are a rule set.
    fingerprint
        Whether `provenance` holds a hash of the weights. It reads all of them once, which takes seconds for large
        models.
    progress
        Called with the number of inputs done, after every batch.

    Returns
    -------
    Explanation or Explanations
        An `Explanation` for one input, `Explanations`, a sequence of them, for a list.

    Examples
    --------
    >>> task = conserva.load()
    >>> one = conserva.explain(task, "a joy.", "positive")
    >>> many = conserva.explain(task, ["a joy.", "a bore."], method="ah+ln")
    >>> len(many), many[0].target
    (2, 'positive')
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is not a task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    chosen = find(method, trusted=trusted, checkpoint=checkpoint)
    with recorder_of(task.model) as recorder:
        found = explain_with(
            recorder, task, inputs, target, chosen, truncate, batch_tokens, fingerprint=fingerprint, progress=progress
        )
    return found if isinstance(found, Explanation) else Explanations(tuple(found))


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
    """Do what `explain` does; batches of a shape that `recorder` has recorded are replayed."""
    target = plain(target)
    if callable(target):
        raise Error(f"target={target!r} is a function, which conserva.relevance takes: give a class, or None.")
    tokens = budget(batch_tokens, task.model)
    is_one = isinstance(inputs, tuple) or task.is_one(inputs)
    if not is_one and not isinstance(inputs, list):
        raise Error(f"inputs={inputs!r:.60} is neither one {task.noun} as {task.name} takes it nor a list of them.")
    many = [inputs] if is_one else list(inputs)
    if isinstance(target, list) and len(target) != len(many):
        raise Error(
            f"target has {len(target)} entries for {len(many)} {task.noun}(s): give one for each, or one for all."
        )
    encoded = task.encode_all(many, truncate=truncate)
    results: list[Explanation | None] = [None] * len(many)
    provenance = provenance_of(task, method, fingerprint)
    padded = {length: task.padded(length) for length in set(map(len, encoded))}
    lengths = [padded[len(one)] for one in encoded]
    for batch in launched(task, method, encoded, target, by_length(lengths, tokens), recorder):
        for i, one in zip(batch.rows, _explanations(task, method, batch, provenance), strict=True):
            results[i] = one
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
    """Yield the explanations of inputs as they are read, in their order; `AT_ONCE` of them are held at a time.

    `target` returns the target of some inputs, as `explain` takes it.
    """
    chosen = find(method)
    with recorder_of(task.model) as recorder:
        rest = iter(inputs)
        while some := list(islice(rest, AT_ONCE)):
            found = explain_with(recorder, task, some, target(some), chosen, truncate, None, fingerprint=fingerprint)
            assert isinstance(found, list)
            yield from found


def _explanations(task: Task, method: Method, batch: Batch, provenance: Mapping[str, Any]) -> Iterator[Explanation]:
    """Yield an explanation for each input of a batch."""
    found = batch.read()
    scores, output, logits = found.scores.numpy(), found.output.tolist(), found.logits
    highest, probabilities = logits.argmax(-1).tolist(), task.head.probabilities(logits)
    ledgers: Sequence[Ledger[float] | None] = [None] * len(output)
    if found.ledger is not None:
        ledgers = found.ledger.per_sample(found.output)
    for row, (encoded, target) in enumerate(zip(batch.encoded, batch.wanted, strict=True)):
        index = class_of(task, target, encoded, highest[row], logits.shape[-1])
        own = tuple(scores[row][batch.own[row]].tolist())
        yield Explanation(
            features=encoded.tokens,
            scores=own,
            special=encoded.special,
            words=encoded.words,
            text=encoded.text,
            target=task.titled(target, index, encoded),
            output=output[row],
            probability=None if index is None or probabilities is None else float(probabilities[row, index]),
            ledger=ledgers[row],
            method=method.name,
            model=task.name,
            provenance={key: dict(one) if isinstance(one, dict) else one for key, one in provenance.items()},
            picture=encoded.picture,
            sections=encoded.sections,
            sink=None if encoded.sink is None else Sink.of(encoded.sink, encoded.tokens, own),
        )


def class_of(task: Task, target: Any, encoded: Encoded, highest: int, classes: int) -> int | None:
    """Return the class that a target is, if it is one."""
    aimed = task.aim(target, encoded)
    if aimed is None:
        return highest
    if isinstance(aimed, str):
        bare = aimed.strip()
        known = task.labels.get(bare)
        if known is not None or not bare.removeprefix("-").isdecimal():
            return known
        aimed = int(bare)
    return aimed % classes if isinstance(aimed, int) else None


def provenance_of(task: Task, method: Method, fingerprint: bool) -> dict[str, Any]:
    """Return what is needed to repeat a result; the hash of the weights only if `fingerprint` asks for it."""
    dtype = str(next(task.model.parameters()).dtype).removeprefix("torch.")
    return {
        **versions(),
        **({"weights": task.fingerprint} if fingerprint else {}),
        "dtype": dtype,
        "rules": None if method.rules is None else method.rules.to_dict(),
        "head": task.head.name,
        "options": dict(method.options),
    }
