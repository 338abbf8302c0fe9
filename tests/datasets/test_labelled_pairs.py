"""Labelled pairs of texts from tables."""

from pathlib import Path

import pytest

import conserva
from conserva.datasets import read_labelled


def test_pairs_come_from_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("premise,hypothesis,label\na joy.,a bore.,no\nDull.,,yes\n", encoding="utf-8")
    with pytest.raises(conserva.Error, match="row 2: the text is empty"):
        read_labelled(path, text="premise", second="hypothesis")
    data = read_labelled(path, text="premise", second="hypothesis", allow_empty=True)
    assert data.texts == (("a joy.", "a bore."), ("Dull.", ""))
    assert data.labels == ("no", "yes")
    with pytest.raises(conserva.Error, match="no column second='hypotesis'"):
        read_labelled(path, text="premise", second="hypotesis")
