"""The seven text datasets of Ali et al. (ICML 2022) by name, in cleaned splits.

Each split is read from a folder or from the Hugging Face hub, compared with the published numbers of rows and labels,
and cleaned: characters by `clean_text`, rows as described in the functions below for each dataset. Validation and test
keep all rows that are not empty. The rows of IMDB are sorted by class, so use `Labelled.take`, which samples at random,
for a part of a split. The numbers of rows after cleaning:

| name | train | validation | test |
| --- | --- | --- | --- |
| sst2 | 67,324 | 872 | 1,821 |
| imdb | 22,377 | 2,500 | 25,000 |
| tweeteval-emotion | 3,257 | 374 | 1,421 |
| tweeteval-hate | 8,755 | 999 | 2,970 |
| tweeteval-sentiment | 45,609 | 2,000 | 12,284 |
| meld-s | 9,989 | 1,109 | 2,610 |
| semaine | 4,264 | 485 | 878 |
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .._util.files import expanded
from .._util.nearest import did_you_mean
from ..errors import Error
from .cleaning import Row, clean_text, contradictory, held_out, letters_and_digits, without
from .labelled import Labelled, read_labelled

SPLITS = ("train", "validation", "test")
"""The splits that every dataset has."""

GRAPH_NAMES = ("bace", "bace-random", "mnist")
"""The datasets of graphs, which `graph_catalogue` defines: their names are needed without importing torch."""

FOLDER_VARIABLE = "CONSERVA_DATA"
"""The environment variable with the default folder of datasets."""


@dataclass(frozen=True)
class Split:
    """The source of a split, and the published number of rows of each label."""

    file: str
    """A Parquet file in the folder of datasets, with columns `text`, `label` and `split`."""
    rows: str
    """The value of the split in the file's column `split`."""
    hub: str
    """The dataset on the Hugging Face hub, with its configuration after a colon."""
    hub_split: str
    hub_columns: tuple[str, str]
    """The columns of texts and of labels on the hub."""
    counts: tuple[int, ...]
    """The number of rows of each label, in the order of the labels, before cleaning."""


@dataclass(frozen=True)
class Dataset:
    """A published dataset: its labels in the order of their indices, and the sources of its splits."""

    name: str
    title: str
    """The name in the tables of the paper."""
    labels: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    compared: Callable[[str], str] | None = str
    """The key by which texts of train that are in other splits are found; None if duplicates are allowed."""
    held_out: int = 0
    """The number of rows per class of train that are held out, if no validation split was published."""

    def read(self, split: str, folder: str | Path | None = None) -> Labelled:
        """Return a cleaned split, with class indices as labels.

        It is read from `folder`, by default the one in the environment variable CONSERVA_DATA, otherwise from the
        Hugging Face hub. Texts of other splits and texts with several labels are removed from train, except for
        dialogues (Meld-S, Semaine), where short utterances repeat.
        """
        if split not in SPLITS:
            raise Error(f"split={split!r} is unknown: {self.name} has {', '.join(SPLITS)}.")
        folder = folder or os.environ.get(FOLDER_VARIABLE) or None
        rows, source = self._rows(split, folder)
        if self.compared and (split == "train" or (split == "validation" and self.held_out)):
            others = ("test",) if self.held_out else ("validation", "test")
            texts = {self.compared(text) for other in others for text, _ in self._rows(other, folder)[0]}
            rows = without(rows, texts, self.compared)
            rows = without(rows, contradictory(rows))
        if self.held_out and split != "test":
            chosen = held_out(rows, self.held_out)
            rows = [row for row in rows if (row[0] in chosen) == (split == "validation")]
        return Labelled(tuple(text for text, _ in rows), tuple(label for _, label in rows), source)

    def _rows(self, split: str, folder: str | Path | None) -> tuple[list[Row], str]:
        """Return the published rows of a split with cleaned texts, and a description of their source."""
        origin: Split = getattr(self, split)
        read = _from_hub(origin) if folder is None else _from_folder(origin, expanded(folder))
        labels = self._indices(read.labels or ())
        source = f"{self.name} {split}, from {read.source}"
        self._check(labels, origin.counts, source)
        cleaned = ((clean_text(text), label) for text, label in zip(read.texts, labels, strict=True))
        return [(text, label) for text, label in cleaned if text], source

    def _indices(self, labels: Iterable[str | int]) -> list[int]:
        """Return class indices; names match case-insensitively, and unknown names are -1, which `_check` rejects."""
        known = {label.casefold(): index for index, label in enumerate(self.labels)}
        return [label if isinstance(label, int) else known.get(label.casefold(), -1) for label in labels]

    def _check(self, labels: list[int], counts: tuple[int, ...], source: str) -> None:
        """Raise an `Error` unless the counts are those published: another release would give other results."""
        actual = Counter(labels)
        if actual == Counter(dict(enumerate(counts))):
            return
        known = [actual[index] for index in range(len(self.labels))]
        raise Error(
            f"{source}: expected {sum(counts):,} rows ({self._listed(counts)}), found {len(labels):,} "
            f"({self._listed(known)}, {len(labels) - sum(known):,} of other labels). Download the published release, "
            "or read another one with conserva.datasets.read_labelled, which does not check counts."
        )

    def _listed(self, counts: Iterable[int]) -> str:
        return ", ".join(f"{count:,} {label}" for count, label in zip(counts, self.labels, strict=True))


def dataset(name: str) -> Dataset:
    """Return a dataset by its name."""
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise Error(f"dataset={name!r} is unknown.{hint} Choose one of {', '.join(DATASETS)}.")
    return DATASETS[name]


def _from_folder(origin: Split, folder: Path) -> Labelled:
    path = folder / origin.file
    if not os.path.isfile(path):
        raise Error(
            f"{str(folder)!r} has no file {origin.file!r}: give the folder that contains it with folder= or the "
            f"environment variable {FOLDER_VARIABLE}, or use neither to read {origin.hub!r} from the Hugging Face hub."
        )
    return read_labelled(path, text="text", label="label", split=origin.rows, allow_empty=True)


def _from_hub(origin: Split) -> Labelled:
    text, label = origin.hub_columns
    try:
        return read_labelled(origin.hub, text=text, label=label, split=origin.hub_split, allow_empty=True)
    except Error as error:
        raise Error(f"{error} Or set {FOLDER_VARIABLE} to a folder that contains {origin.file!r}.") from None


# The datasets.

_NEGATIVE_POSITIVE = ("negative", "positive")
_SENTIMENTS = ("negative", "neutral", "positive")
_Counts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _sst2() -> Dataset:
    """Return SST-2 as in GLUE, with the test sentences of the treebank, since GLUE's test split has no labels.

    GLUE's train consists of phrases, some of which are complete sentences of validation or test. The files are
    tokenized differently, so texts are compared by their letters and digits. A few phrases have both labels in train.
    """
    glue, hub, columns = "sst2/sst2_glue.parquet", "nyu-mll/glue:sst2", ("sentence", "label")
    sentences = "sst2/sst2_sentences.parquet"
    return Dataset(
        "sst2",
        "SST-2",
        _NEGATIVE_POSITIVE,
        Split(glue, "train", hub, "train", columns, (29_780, 37_569)),
        Split(glue, "dev", hub, "validation", columns, (428, 444)),
        Split(sentences, "test", "SetFit/sst2", "test", ("text", "label"), (912, 909)),
        compared=letters_and_digits,
    )


def _imdb() -> Dataset:
    """Return IMDB, with a tenth of train held out for validation, since no validation split was published.

    Reviews that are also in test are removed from train before.
    """
    file, hub, columns, counts = "imdb/imdb.parquet", "stanfordnlp/imdb", ("text", "label"), (12_500, 12_500)
    train = Split(file, "train", hub, "train", columns, counts)
    test = Split(file, "test", hub, "test", columns, counts)
    return Dataset("imdb", "IMDB", _NEGATIVE_POSITIVE, train, train, test, held_out=1_250)


def _tweets(task: str, title: str, labels: tuple[str, ...], counts: _Counts) -> Dataset:
    """Return a task of TweetEval.

    Hate has empty texts, 232 texts in both train and test, many with different labels, and characters that were encoded
    twice. A few tweets of hate and of sentiment have several labels in train.
    """
    file = f"tweeteval_{task}/tweeteval_{task}.parquet"
    splits = _splits(file, ("train", "val", "test"), f"cardiffnlp/tweet_eval:{task}", ("text", "label"), counts)
    return Dataset(f"tweeteval-{task}", title, labels, *splits)


def _dialogues(name: str, title: str, configuration: str, counts: _Counts) -> Dataset:
    """Return a dataset of SILICONE, whose splits share texts: utterances such as "okay" naturally repeat.

    On the hub it is a loading script, which the package datasets does not run, so it must be read from a folder.
    """
    file = f"silicone_{configuration}/silicone_{configuration}.parquet"
    columns = ("Utterance", "Label")  # the names of labels are in the column Sentiment
    splits = _splits(file, ("train", "dev", "test"), f"eusip/silicone:{configuration}", columns, counts)
    return Dataset(name, title, _SENTIMENTS, *splits, compared=None)


def _splits(
    file: str, rows: tuple[str, str, str], hub: str, columns: tuple[str, str], counts: _Counts
) -> tuple[Split, Split, Split]:
    """Return the three splits of a file, which on the hub have the names in `SPLITS`."""
    train, validation, test = (Split(file, rows[i], hub, split, columns, counts[i]) for i, split in enumerate(SPLITS))
    return train, validation, test


_ALL = (
    _sst2(),
    _imdb(),
    _tweets(
        "emotion",
        "T-Emotions",
        ("anger", "joy", "optimism", "sadness"),
        ((1_400, 708, 294, 855), (160, 97, 28, 89), (558, 358, 123, 382)),
    ),
    _tweets("hate", "T-Hate", ("not-hate", "hate"), ((5_217, 3_783), (573, 427), (1_718, 1_252))),
    _tweets(
        "sentiment",
        "T-Sentiment",
        _SENTIMENTS,
        ((7_093, 20_673, 17_849), (312, 869, 819), (3_972, 5_937, 2_375)),
    ),
    _dialogues("meld-s", "Meld-S", "meld_s", ((2_945, 4_710, 2_334), (406, 470, 233), (833, 1_256, 521))),
    _dialogues("semaine", "Semaine", "sem", ((844, 2_291, 1_129), (92, 261, 132), (158, 488, 232))),
)

DATASETS: Mapping[str, Dataset] = {each.name: each for each in _ALL}
"""The datasets by name."""
