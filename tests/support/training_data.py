"""What tests share: training data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conserva.datasets import DATASETS, Dataset
from conserva.datasets.catalogue import Split

WORDS = {0: ("dull", "bad", "tedious", "lifeless"), 1: ("good", "lovely", "a joy", "moving")}


THINGS = ("film", "plot", "cast", "story and a cast of many", "ending", "music")


LINES = [(f"a {word} {thing}", label) for thing in THINGS for label, words in WORDS.items() for word in words]


TEXTS = {"train": LINES[:24], "validation": LINES[24:36], "test": LINES[36:46]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """A small dataset in a folder, known by its name."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, splits = tmp_path_factory.mktemp("data"), []
    for split, lines in TEXTS.items():
        words, labels = map(list, zip(*lines, strict=True))
        counts, columns = (labels.count(0), labels.count(1)), ("text", "label")
        parquet.write_table(
            arrow.table({"text": words, "label": labels, "split": [split] * len(lines)}), folder / f"{split}.parquet"
        )
        splits.append(Split(f"{split}.parquet", split, "no/hub", split, columns, counts))
    found = Dataset("small", "Small", ("negative", "positive"), *splits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSERVA_DATA", str(folder))
        patch.setitem(DATASETS, "small", found)  # type: ignore[arg-type]
        yield found
