"""Reading of labelled texts from a file or a Hugging Face dataset, with checks of every row."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from .._util.files import expanded, reason
from ..errors import Error
from .tables import READERS, Table, read_file, read_hub

TEXT_COLUMNS = ("text", "sentence", "review", "content", "tweet", "utterance", "smiles")
"""Default names of the column of texts, matched case-insensitively."""

LABEL_COLUMNS = ("label", "labels", "sentiment", "class", "target")
"""Default names of the column of labels, matched case-insensitively."""

HUB_SPLIT = "validation"
"""The default split of a Hugging Face dataset."""

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:\w[\w.,+-]*)?")
_FILE_ENDING = re.compile(r"\.[A-Za-z]\w*")  # the name of a dataset can end in a version, such as `name-1.0`
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Labelled:
    """Texts, or other inputs of a task, in the order of their file, with their labels, if any, and their source."""

    texts: tuple[Any, ...]
    labels: tuple[str | int, ...] | None
    source: str

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, count: int | None, seed: int = 0) -> Labelled:
        """Return `count` rows at random without replacement, in the order of the file; all rows if count is None."""
        if count is not None and count < 1:
            raise Error(f"count={count} is too small: give 1 or more, or None for all {len(self)}.")
        if count is None or count >= len(self):
            return self
        rows = sorted(random.Random(seed).sample(range(len(self)), count))
        labels = None if self.labels is None else tuple(self.labels[row] for row in rows)
        return Labelled(tuple(self.texts[row] for row in rows), labels, self.source)


def read_labelled(
    source: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    split: str | None = None,
    second: str | None = None,
    allow_empty: bool = False,
) -> Labelled:
    """Read texts and labels from a file or from the Hugging Face hub.

    Parameters
    ----------
    source
        A .csv, .tsv, .jsonl, .ndjson, .json or .parquet file, or the name of a dataset on the hub, with its
        configuration after a colon: "imdb", "glue:sst2".
    text, label
        The names of the columns; by default they are found by common names. Without a column of labels, the result has
        `labels=None`.
    split
        A split of the dataset on the hub, by default "validation"; for a file with a column `split`, its value there,
        or several as "train+dev".
    second
        The name of a column of second texts, for models of pairs: each input is then a tuple of two texts.
    allow_empty
        Whether empty texts are accepted; otherwise they raise an `Error`.
    """
    if names_file(source):
        table = read_file(expanded(source))
        rows = _rows_of_split(table, split)
    else:
        split = split or HUB_SPLIT
        table = read_hub(str(source), split)
        rows = range(table.length)
    if not table.length:
        raise Error(f"{table.source!r} has no rows: give a source with at least one text.")
    text_column = _find(table, "text", text, TEXT_COLUMNS)
    if text_column is None:
        names = listed(table.names)
        raise Error(f"{table.source!r} has no column of texts: choose one with text= (--text-column), from {names}.")
    label_column = _find(table, "label", label, tuple(name for name in LABEL_COLUMNS if name != text_column.lower()))
    columns = [table.column(name) for name in (text_column, _find(table, "second", second, ())) if name is not None]
    labels = None
    if label_column is not None:
        values = table.column(label_column)
        labels = _integers_if_all([_label(table, row, values[row]) for row in rows])
    origin = f"{source} ({split})" if split else str(source)
    texts = [tuple(_text(table, row, column[row], allow_empty) for column in columns) for row in rows]
    return Labelled(tuple(texts if len(columns) > 1 else [text for (text,) in texts]), labels, origin)


def class_indices(labels: Sequence[str | int], known: Mapping[str, int], classes: int) -> list[int]:
    """Return the class index of each label: integers are indices, names are looked up exactly, then case-insensitively.

    Errors contain the row number in `labels`, so call this before `take` to get row numbers of the file.
    """
    folded: dict[str, set[int]] = {}
    for name, index in known.items():
        folded.setdefault(name.casefold(), set()).add(index)
    indices: list[int] = []
    label: Any
    for row, label in enumerate(labels, 1):
        if isinstance(label, Integral):  # also those of numpy
            if label not in range(classes):
                raise Error(f"Label {label} of row {row} is out of range: the model has classes 0 to {classes - 1}.")
            indices.append(int(label))
            continue
        if not isinstance(label, str):
            raise Error(f"Label {label!r} of row {row} is neither a name nor the index of a class.")
        # Names that differ in case only are distinct classes, which need an exact match.
        matches = {known[label]} if label in known else folded.get(label.casefold(), set())
        if len(matches) != 1:
            raise Error(
                f"Label {shortened(label)} of row {row} is not one of the model's labels: {listed(known)}. "
                "Rename it in the data, or give class indices."
            )
        indices.extend(matches)
    return indices


# Kinds of sources.


def names_file(source: str | Path) -> bool:
    """Return whether a source is a file; raise an `Error` if it is neither a file nor a valid name of a dataset."""
    path = expanded(source)
    ending = path.suffix.lower()
    if os.path.isdir(path):
        raise Error(f"{str(source)!r} is a folder: give a file in it.")
    exists = True
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        exists = False
    except (OSError, ValueError) as error:
        raise Error(f"{str(source)!r} cannot be read: {reason(error)}.") from None
    if ending in READERS:
        if not exists:
            raise Error(f"{str(source)!r} is not a file: check the path.")
        return True
    endings = ", ".join(READERS)
    if exists:
        raise Error(f"{str(source)!r} ends in {path.suffix!r}: only {endings} files can be read.")
    if isinstance(source, Path) or not _HUB_NAME.fullmatch(source) or _FILE_ENDING.fullmatch(ending):
        raise Error(
            f"{str(source)!r} is neither a file nor a valid name of a Hugging Face dataset: give a {endings} file, or "
            "name or name:configuration."
        )
    return False


# Contents of the columns.


def listed(names: Iterable[str]) -> str:
    """Return names for an error message: the first twenty, quoted."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _find(table: Table, kind: str, given: str | None, usual: tuple[str, ...]) -> str | None:
    if given is None:
        columns = [name for name in table.names if name.lower() in usual]
    else:
        columns = [name for name in table.names if name == given]
        if not columns:
            raise Error(f"{table.source!r} has no column {kind}={given!r}: choose one of {listed(table.names)}.")
    if len(columns) > 1:
        raise Error(
            f"{table.source!r} has several columns that may be the {kind}: {listed(columns)}. Choose one with {kind}="
            f", or rename it; all columns are {listed(table.names)}."
        )
    return columns[0] if columns else None


def _rows_of_split(table: Table, split: str | None) -> Sequence[int]:
    """Return the rows of a split; a file with several splits raises an `Error` if none is chosen."""
    column = _find(table, "split", None, ("split",))
    if column is None:
        if split is not None:
            raise Error(
                f"{table.source!r} has no column 'split' to find split={split!r} in: leave split out to read all."
            )
        return range(table.length)
    values = [value if isinstance(value, str) else shortened(value) for value in table.column(column)]
    splits = list(dict.fromkeys(values))
    if split is None and len(splits) > 1:
        raise Error(f"{table.source!r} has several splits: choose one with split= (--split), from {listed(splits)}.")
    wanted = splits if split is None else [split] if split in splits else split.split("+")
    if missing := [name for name in wanted if name not in splits]:
        raise Error(
            f"{table.source!r} has no rows with split={missing[0]!r}: choose one of {listed(splits)}, or more as a+b."
        )
    return [row for row, value in enumerate(values) if value in wanted]


def _text(table: Table, row: int, value: object, allow_empty: bool) -> str:
    where = f"{table.source!r}, row {row + 1}"
    if not isinstance(value, str):
        raise Error(f"{where}: the text is {shortened(value)}, not a string. Correct or remove the row.")
    if not (allow_empty or value.strip()):
        raise Error(f"{where}: the text is empty. Fill it in or remove the row.")
    if _SURROGATE.search(value):
        raise Error(f"{where}: the text contains half a character (a lone surrogate). Correct the row.")
    return value


def _label(table: Table, row: int, value: object) -> str | int:
    where = f"{table.source!r}, row {row + 1}"
    if isinstance(value, str):
        value = value.strip()
    if value is None or value != value or (isinstance(value, str) and value.lower() in ("", "nan")):
        raise Error(f"{where} has no label. Fill it in or remove the row.")
    if isinstance(value, float) and value.is_integer():  # integers in a column that also has NaN are floats
        value = int(value)
    if not isinstance(value, (str, int)):
        raise Error(f"{where}: the label is {shortened(value)}, neither an integer nor a name. Give one class per row.")
    return value if isinstance(value, str) else int(value)


def _integers_if_all(labels: list[str | int]) -> tuple[str | int, ...]:
    if all(isinstance(label, int) or _INTEGER.fullmatch(label) for label in labels):
        return tuple(int(label) for label in labels)
    return tuple(labels)
