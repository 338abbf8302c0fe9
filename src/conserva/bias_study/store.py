"""Saving of a bias study: all of it as JSON, and its mentions as Parquet."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from .._util.extras import require
from .._util.files import atomic_file, write_text, writing
from .result import BiasStudy


def save(study: BiasStudy, folder: str | Path) -> list[Path]:
    """Write the study and its mentions to a folder; return the files written."""
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "bias.json", folder / "mentions.parquet"]
    write_text(written[0], study.to_json() + "\n")
    require(f"{written[1].name}, whose mentions are also in {written[0].name},", "pyarrow")
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows = [{**asdict(mention), "sentence": study.sentences[mention.text]} for mention in study.mentions]
    kinds = {
        "text": arrow.int64(),
        "start": arrow.int64(),
        "end": arrow.int64(),
        "entity": arrow.string(),
        "group": arrow.string(),
        "relevance": arrow.float64(),
        "share": arrow.float64(),
        "output": arrow.float64(),
        "label": arrow.int8(),
        "sentence": arrow.string(),
    }
    table = arrow.Table.from_pylist(rows, schema=arrow.schema(kinds))
    with writing(written[1]), atomic_file(written[1]) as temporary, temporary.open("wb") as opened:
        parquet.write_table(table, opened, compression="zstd")  # a file, since paths that are not UTF-8 are rejected
    return written
