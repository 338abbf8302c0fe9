"""From a model, a corpus and groups of words to a bias study."""

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
from ..tasks.task import Task
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
    """Collect the relevance that falls on groups of words in a corpus, and compare the groups.

    Parameters
    ----------
    task
        A text classifier: what `conserva.load` returned, or `conserva.Text(model, tokenizer)`.
    data
        A file (.csv, .tsv, .jsonl, .json, .parquet) or dataset name, a list of texts, or of (text, label); or an
        iterator of texts, which is read one by one.
    groups
        Name of a group -> its words or phrases, or a file with one a line; a list of such files, or a folder of .txt
        files, each a group called as the file is; "names" for the lists of first names in the folder of datasets; or a
        tagger, a function from a text to a list of (start, end, group). Words that are listed with a capital letter are
        names, and must have it in texts that have capitals; others are met in any case.
    target
        The contrast that is explained, the difference of two classes' scores; None for a two-class model's second less
        its first.
    method
        One of `conserva.methods()`, or a rule set of your own.
    level
        Below which corrected p-values are flagged.
    ordinary
        "skip" leaves out names that are ordinary words ("Will", "Grace") where no capital letter tells them apart;
        "keep" counts all.
    ambiguous
        Whether words of several groups are a group of their own ("own"), or left out ("skip").
    swaps
        How many entities are swapped for others, as a check; 0 for none.
    seed
        Decides the bootstrap, the permutations and the swaps.
    truncate
        Whether texts longer than the model takes are cut, and what they mention after that is dropped; otherwise they
        are refused.
    batch_tokens
        How many tokens are explained at once, as in `conserva.explain`.
    out
        A folder for what is done so far, where a run that was stopped goes on; in the end for bias.json and
        mentions.parquet.
    progress
        Called with the number of texts read, and of all; for an iterator, of those read so far.

    Returns
    -------
    BiasStudy
        The groups, the differences between them, the words that stand out, and all mentions.

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
    found_method = find(method)
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
        "method": {found_method.name: dict(found_method.options)},
        "truncate": truncate,
        "model": model,
        "versions": {name: one for name, one in installed.items() if name != "python"},
    }
    collector = Collector(task, finder, target, found_method, truncate=truncate, batch_tokens=tokens)
    done = collector.collect(corpus, None if out is None else Path(out), settings, progress)
    if not done.mentions:
        raise Error(_nothing(corpus, done.texts, done.left_out, done.beyond))
    met = {mention.group for mention in done.mentions}
    names = [name for name in about["words"] if name in met] if about["words"] else sorted(met)
    entities = testing.entities_of(done.mentions, level, seed)
    asked = {"count": swaps, "seed": seed, "batch_tokens": tokens}
    study = BiasStudy(
        target=target,
        method=found_method.name,
        model=task.name,
        data=corpus.source,
        texts=done.texts,
        groups=testing.groups_of(done.mentions, names, seed),
        differences=testing.differences_of(done.mentions, names, level, seed),
        entities=entities,
        naive=testing.naive_of(done.mentions, names),
        swaps=swapping.swaps_of(task, target, done.sentences, done.mentions, entities, **asked) if swaps else (),
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
            "options": dict(found_method.options),
        },
    )
    if out is not None:
        save(study, out)
    return study


def _check(task: Task, level: float, swaps: int, seed: int) -> None:
    """Raise for what no study can be made of."""
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is not a task: use conserva.load(...) or conserva.Text(model, tokenizer).")
    if not isinstance(task, Text):
        raise Error(f"{task.name} reads {task.noun}s: words are looked for in texts, so give a text classifier.")
    if not 0 < level < 1:
        raise Error(f"level={level!r} is not a level of a test: give a number between 0 and 1, as 0.05.")
    if swaps < 0:
        raise Error(f"swaps={swaps} is below 0: give 0 for none.")
    if seed < 0:
        raise Error(f"seed={seed} is below 0: give 0 or more.")


def _contrast(task: Text, target: str | None) -> tuple[str, int, int]:
    """Return the contrast by name, and the indices of its first and second class."""
    classes = task.classes
    if classes < 2:
        raise Error(f"{task.name} has {classes} class(es): a bias study explains the difference of two.")
    if target is None:
        if classes != 2:
            raise Error(f"{task.name} has {classes} classes: say which two to contrast, as target='a - b'.")
        named = {index: name for name, index in task.labels.items()}
        target = f"{named.get(1, '1')} - {named.get(0, '0')}"
    if not isinstance(target, str):
        raise Error(f"target={target!r} is not a contrast of two classes: give one as 'positive - negative'.")
    # What the contrast is of each class alone: 1 for its first, -1 for its second.
    signs = read_target(torch.eye(classes), target, task.labels, classes).tolist()
    if sorted(signs) != [-1.0, *[0.0] * (classes - 2), 1.0]:
        known = ", ".join(map(repr, task.labels))
        raise Error(f"target={target!r} is not a contrast of two classes: give one as 'a - b', of {known}.")
    return target, signs.index(1.0), signs.index(-1.0)


def _finder(groups: Groups | Tagger, ordinary: str, ambiguous: str) -> tuple[Finder, dict[str, Any]]:
    """Return what finds the groups' words, and what there is to say of them."""
    if callable(groups):
        name = getattr(groups, "name", None) or getattr(groups, "__qualname__", type(groups).__name__)
        return Tagged(groups), {"fingerprint": f"tagger {name}", "words": {}}
    lexicon = lexicon_of(groups, ordinary=ordinary, ambiguous=ambiguous)
    return Words(lexicon), {"fingerprint": lexicon.fingerprint, "words": lexicon.sizes}


def _corpus(task: Text, texts: Any, first: int, second: int) -> Corpus:
    if isinstance(texts, Corpus):
        return texts
    if isinstance(texts, Iterator):
        return Corpus(_one_by_one(texts), None, "texts")
    data = task.labelled(texts)
    for number, one in enumerate(data.texts, 1):
        if not isinstance(one, str):
            raise Error(f"Text {number} of {data.source} is {one!r:.60}: a bias study reads texts, not pairs of them.")
    sides = {first: 1, second: 0}
    labels: list[int | None] = [None] * len(data)
    if data.labels is not None:
        labels = [sides.get(index) for index in class_indices(data.labels, task.labels, task.classes)]
    return Corpus(zip(data.texts, labels, strict=True), len(data), data.source)


def _one_by_one(texts: Iterator[Any]) -> Iterator[tuple[str, int | None]]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise Error(f"Text {number} is {text!r:.60}: an iterator must give texts, without labels.")
        yield text, None


def _nothing(corpus: Corpus, texts: int, left_out: Any, beyond: int) -> str:
    """Return what to say of a corpus without a mention."""
    message = f"None of the {texts} text(s) of {corpus.source} mentions a word of the groups"
    if left_out:
        named = ", ".join(f"{word!r}" for word, _ in left_out.most_common(3))
        return (
            f"{message}, but for {sum(left_out.values())} mention(s) that are left out, as {named}: keep ordinary "
            "words with ordinary='keep' (--keep-ordinary), words of several groups with ambiguous='own'."
        )
    if beyond:
        return f"{message}, but for {beyond} after the place where texts were cut: give shorter texts."
    return f"{message}: give other texts or groups. Words listed with a capital letter need it in texts that have any."
