"""`conserva.bias`: collect the relevance of groups of words in a corpus, and test their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .._util.extras import require
from .._util.files import check_folder
from .._util.versions import versions
from ..attribution import MethodLike, find
from ..datasets import class_indices
from ..engine.rules import DEFAULT
from ..engine.targets import read_target
from ..errors import Error
from ..tasks.batches import budget
from ..tasks.fingerprint import hash_of, identity_of
from ..tasks.task import Task, require_task
from ..tasks.text import Text
from . import swapping, testing
from .collect import Collector, Corpus
from .lexicon import Groups, lexicon_of
from .mentions import Finder, Tagged, Tagger, Words
from .result import BiasStudy
from .store import save


def bias(
    task: Task,
    data: Any,
    groups: Groups | Tagger,
    *,
    target: str | None = "positive - negative",
    method: MethodLike = DEFAULT,
    level: float = 0.05,
    ordinary: str = "skip",
    ambiguous: str = "own",
    swaps: int = 10,
    seed: int = 0,
    truncate: bool = True,
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BiasStudy:
    """Compare the relevance of groups of words in a corpus.

    Parameters
    ----------
    task
        A text classifier: the result of `conserva.load`, or `conserva.Text(model, tokenizer)`.
    data
        A file (.csv, .tsv, .jsonl, .json, .parquet), a dataset name, or a list of texts or of (text, label); or an
        iterator of texts, which is consumed lazily.
    groups
        A mapping from the name of each group to its words or phrases, or to a file with one per line; a list of such
        files or a folder of .txt files, whose names are those of the groups; "names" for the lists of first names in
        the dataset folder; or a tagger, a function from a text to a list of (start, end, group). Words listed with a
        capital letter are names: they match only capitalised words, except in texts without capitals. Other words match
        case-insensitively.
    target
        The contrast to explain, the difference of the logits of two classes. None uses the second class minus the first
        of a model with two classes.
    method
        One of `conserva.methods()`, or a custom rule set.
    level
        The significance level: corrected p-values below it are flagged.
    ordinary
        How to treat names that are also ordinary words ("Will", "Grace"): "skip" leaves them out where capitalisation
        does not identify them as names, "keep" counts them everywhere.
    ambiguous
        How to treat words of several groups: "own" makes them a separate group, "skip" leaves them out.
    swaps
        The number of entities to replace by entities of other groups, as a check; 0 for none.
    seed
        The seed of the bootstrap, the permutations and the swaps.
    truncate
        Whether to truncate texts that exceed the model's maximum length; mentions after the cut are dropped. Otherwise
        such texts raise an error.
    batch_tokens
        The maximum number of tokens in a batch, as in `conserva.explain`.
    out
        A folder for intermediate results, from which an interrupted run is resumed, and for the final bias.json and
        mentions.parquet.
    progress
        Called with the number of texts read so far and the number of all texts; for an iterator both are the number
        read so far.

    Returns
    -------
    BiasStudy
        The groups, the tested differences between them, the words with significant relevance, and all mentions.

    Examples
    --------
    >>> texts = ["olivia gives a fine performance.", "oliver gives a fine performance.", "emma is a bore."]
    >>> groups = {"female": ["Olivia", "Emma"], "male": ["Oliver"]}
    >>> study = conserva.bias(conserva.load(), texts, groups, swaps=0)
    >>> [(group.name, group.mentions) for group in study.groups]
    [('female', 2), ('male', 1)]
    """
    _check(task, level, swaps, seed)
    assert isinstance(task, Text)
    tokens = budget(batch_tokens, task.model)
    target, first, second = _contrast(task, target)
    chosen = find(method, tokens=task.special_ids)
    finder, about = _finder(groups, ordinary, ambiguous)
    corpus = _corpus(task, data, first, second)
    installed = versions("tokenizers")
    if out is not None:
        check_folder(Path(out), f"out={str(out)!r}")
        require(f"out={str(out)!r}", "pyarrow")
    model = identity_of(task)
    settings = {
        "data": corpus.source,
        "groups": about["fingerprint"],
        "ordinary": ordinary,
        "ambiguous": ambiguous,
        "target": target,
        "method": {chosen.name: dict(chosen.options)},
        "truncate": truncate,
        "model": model,
        "versions": {name: version for name, version in installed.items() if name != "python"},
    }
    collector = Collector(task, finder, target, chosen, truncate=truncate, batch_tokens=tokens)
    done = collector.collect(corpus, None if out is None else Path(out), settings, progress)
    if not done.mentions:
        raise Error(_no_mentions(corpus, done.texts, done.left_out, done.beyond))
    mentioned = {mention.group for mention in done.mentions}
    names = [name for name in about["words"] if name in mentioned] if about["words"] else sorted(mentioned)
    entities = testing.entities_of(done.mentions, level, seed)
    options = {"count": swaps, "seed": seed, "batch_tokens": tokens}
    study = BiasStudy(
        target=target,
        method=chosen.name,
        model=task.name,
        data=corpus.source,
        texts=done.texts,
        groups=testing.groups_of(done.mentions, names, seed),
        differences=testing.differences_of(done.mentions, names, level, seed),
        entities=entities,
        naive=testing.naive_of(done.mentions, names),
        swaps=swapping.swaps_of(task, target, done.sentences, done.mentions, entities, **options) if swaps else (),
        mentions=tuple(done.mentions),
        sentences=done.sentences,
        level=level,
        left_out=dict(done.left_out.most_common()),
        provenance={
            **installed,
            "weights": model["weights"],
            "configuration": hash_of(model["configuration"]),
            "tokenizer": model["tokenizer"],
            "texts": done.hash,
            "groups": about,
            "ordinary": ordinary,
            "ambiguous": ambiguous,
            "seed": seed,
            "truncate": truncate,
            "beyond_cut": done.beyond,
            "batch_tokens": tokens,
            "dtype": str(next(task.model.parameters()).dtype).removeprefix("torch."),
            "options": dict(chosen.options),
        },
    )
    if out is not None:
        save(study, out)
    return study


def _check(task: Task, level: float, swaps: int, seed: int) -> None:
    """Raise for invalid arguments of `bias`."""
    require_task(task)
    if not isinstance(task, Text):
        raise Error(f"{task.name} takes {task.noun}s, but a bias study searches texts: give a text classifier.")
    if not 0 < level < 1:
        raise Error(f"level={level!r} is not a significance level: give a number between 0 and 1, such as 0.05.")
    if swaps < 0:
        raise Error(f"swaps={swaps} is negative: give 0 for none.")
    if seed < 0:
        raise Error(f"seed={seed} is negative: give 0 or more.")


def _contrast(task: Text, target: str | None) -> tuple[str, int, int]:
    """Return the contrast as "a - b", and the class indices of a and b."""
    classes = task.classes
    if classes < 2:
        raise Error(f"{task.name} has {classes} class(es), but a bias study explains the difference of two.")
    if target is None:
        if classes != 2:
            raise Error(f"{task.name} has {classes} classes: choose two of them with target='a - b'.")
        named = {index: name for name, index in task.labels.items()}
        target = f"{named.get(1, '1')} - {named.get(0, '0')}"
    if not isinstance(target, str):
        raise Error(f"target={target!r} is not a contrast of two classes: give one, such as 'positive - negative'.")
    # The contrast of one-hot logits: 1 for its first class, -1 for its second, 0 for others.
    signs = read_target(torch.eye(classes), target, task.labels, classes).tolist()
    if sorted(signs) != [-1.0, *[0.0] * (classes - 2), 1.0]:
        known = ", ".join(map(repr, task.labels))
        raise Error(f"target={target!r} is not a contrast of two classes: give 'a - b' with two of {known}.")
    return target, signs.index(1.0), signs.index(-1.0)


def _finder(groups: Groups | Tagger, ordinary: str, ambiguous: str) -> tuple[Finder, dict[str, Any]]:
    """Return a finder of the groups' words in texts, and a description of the groups for `provenance`."""
    if callable(groups):
        name = getattr(groups, "name", None) or getattr(groups, "__qualname__", type(groups).__name__)
        return Tagged(groups), {"fingerprint": f"tagger {name}", "words": {}}
    lexicon = lexicon_of(groups, ordinary=ordinary, ambiguous=ambiguous)
    return Words(lexicon), {"fingerprint": lexicon.fingerprint, "words": lexicon.sizes}


def _corpus(task: Text, texts: Any, first: int, second: int) -> Corpus:
    if isinstance(texts, Corpus):
        return texts
    if isinstance(texts, Iterator):
        return Corpus(_unlabelled(texts), None, "texts")
    data = task.labelled(texts)
    for number, text in enumerate(data.texts, 1):
        if not isinstance(text, str):
            raise Error(f"Text {number} of {data.source} is {text!r:.60}: a bias study takes single texts, not pairs.")
    sides = {first: 1, second: 0}
    labels: list[int | None] = [None] * len(data)
    if data.labels is not None:
        labels = [sides.get(index) for index in class_indices(data.labels, task.labels, task.classes)]
    return Corpus(zip(data.texts, labels, strict=True), len(data), data.source)


def _unlabelled(texts: Iterator[Any]) -> Iterator[tuple[str, int | None]]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise Error(f"Text {number} is {text!r:.60}: an iterator must yield strings, without labels.")
        yield text, None


def _no_mentions(corpus: Corpus, texts: int, left_out: Any, beyond: int) -> str:
    """Return the error message for a corpus without mentions."""
    message = f"None of the {texts} text(s) of {corpus.source} mentions a word of the groups"
    if left_out:
        named = ", ".join(f"{word!r}" for word, _ in left_out.most_common(3))
        return (
            f"{message}, except for {sum(left_out.values())} mention(s) that are left out, such as {named}: keep "
            "ordinary words with ordinary='keep' (--keep-ordinary), words of several groups with ambiguous='own'."
        )
    if beyond:
        return f"{message}, except for {beyond} mention(s) after the cut of truncated texts: give shorter texts."
    return (
        f"{message}: give other texts or groups. Words listed with a capital letter match only capitalised words, "
        "except in texts without capitals."
    )
