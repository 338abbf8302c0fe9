"""Files that are almost right: bytes and JSON, changed at random."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

from attacking import hostile_text

_EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 10**12, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(rng: random.Random, content: bytes, others: list[bytes]) -> tuple[str, bytes]:
    """Return what was done to a file's content, and what became of it."""
    how = rng.choice(["cut", "cut", "flip", "flip", "flip", "zeros", "size", "size", "twice", "swap", "empty", "junk"])
    at = rng.randrange(len(content) + 1)
    if how == "cut":
        return how, content[:at]
    if how == "flip":
        changed = bytearray(content)
        early = rng.random() < 0.5  # headers stand at the beginning, and they are short
        for _ in range(rng.choice([1, 1, 2, 8, 50])):
            place = rng.randrange(min(len(changed), 400) if early else len(changed))
            changed[place] = rng.randrange(256)
        return how, bytes(changed)
    if how == "zeros":
        return how, content[:at] + bytes(rng.choice([1, 4, 100, 5000])) + content[at:]
    if how == "size":
        width, code = rng.choice([(2, "H"), (4, "I"), (8, "Q")])
        at = rng.randrange(min(len(content), rng.choice([64, 400, 10**9])) + 1)
        number = rng.choice(_EXTREMES) % 256**width
        return how, content[:at] + struct.pack(rng.choice("<>") + code, number) + content[at + width :]
    if how == "twice":
        end = rng.randrange(at, len(content) + 1)
        return how, content[:end] + content[at:]
    if how == "swap":
        return how, rng.choice(others)
    return how, b"" if how == "empty" else rng.randbytes(rng.choice([1, 10, 1000]))


def mutated_json(rng: random.Random, content: bytes, others: list[bytes]) -> tuple[str, bytes]:
    """Return what was done to a JSON file, and what became of it: mostly a value of another type or size."""
    if rng.random() < 0.25:
        return mutated(rng, content, others)
    whole = json.loads(content)
    said = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        path, owner, key = _place(rng, whole)
        value = _other(rng, owner[key])
        if value is _GONE:
            del owner[key]
        else:
            owner[key] = value
        said.append(f"{path} = {value!r:.60}")
        if not whole:
            break
    if rng.random() < 0.05:
        depth = rng.choice([50, 900, 100_000])
        return f"{depth} deep", b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    return "; ".join(said), json.dumps(whole, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


_GONE = object()


def _place(rng: random.Random, whole: Any) -> tuple[str, Any, Any]:
    """Return a place in JSON, by its path, what it is in and its key there; few are deep inside of large parts."""
    path, owner = "", whole
    while True:
        key = rng.choice(list(owner)) if isinstance(owner, dict) else rng.randrange(len(owner))
        path += f"/{key}"
        inside = owner[key]
        if not isinstance(inside, (dict, list)) or not inside or rng.random() < 0.3:
            return path, owner, key
        owner = inside


def _other(rng: random.Random, value: Any) -> Any:
    """Return another value in the place of one."""
    if isinstance(value, int) and rng.random() < 0.4:
        return rng.choice([-1, 0, 1, 2, 3, value + 1, value * 7, 1000, 10**5, 10**6, 10**9, 10**12, 2**63, 10**40])
    return rng.choice(
        [
            _GONE,
            None,
            True,
            False,
            -1,
            0,
            3,
            0.5,
            1e308,
            10**9,
            10**30,
            "",
            "none such",
            "../../../etc/passwd",
            "/dev/zero",
            "x" * 5000,
            hostile_text(rng, surrogates=True),
            [],
            {},
            [copy.deepcopy(value)],
            {"a": copy.deepcopy(value)},
            [1, "a", None, {}],
            float("nan"),
        ]
    )
