"""A bias study on disk: the whole as JSON, every mention as Parquet."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from ..errors import Error
from ..whole import whole_file
from .result import BiasStudy


def save(study: BiasStudy, folder: str | Path) -> list[Path]:
    """Write the study and its mentions to a folder; return what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "bias.json", folder / "mentions.parquet"]
    with whole_file(written[0]) as half:
        half.write_text(study.to_json() + "\n", encoding="utf-8")
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise Error(
            f"{written[1].name} needs pyarrow: pip install 'conserva[data]'. The same mentions are in {written[0]}."
        ) from None
    rows = [{**asdict(one), "sentence": study.sentences[one.text]} for one in study.mentions]
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
    with whole_file(written[1]) as half:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=arrow.schema(kinds)), half, compression="zstd")
    return written
