"""What an offline run of Weights & Biases has written."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the run's history: name -> number, or what is known of a file."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    rows = []
    for content in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            rows.append(_row(record.history.item))
    return rows


def _row(items: Any) -> dict[str, Any]:
    """Return the values by name; those of files, whose keys are nested, as dictionaries."""
    row: dict[str, Any] = {}
    for item in items:
        value = json.loads(item.value_json)
        if item.key or len(item.nested_key) == 1:
            row[item.key or item.nested_key[0]] = value
        else:
            row.setdefault(item.nested_key[0], {})["/".join(item.nested_key[1:])] = value
    return row


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log in the format of LevelDB, after the file's own header of the same size."""
    position, record = HEADER, b""
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""
