"""Language models in GGUF files: parsed and dequantised once, then loaded from the cache.

transformers parses a GGUF file again for the configuration, for the tokenizer and for the weights, in Python, which
takes most of a minute for a small model. Here these share one parse, and the result is cached as safetensors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from .._util.cache import cached, file_hash, store
from .._util.files import MEBIBYTE
from ..errors import Error
from .pretrained import UNTRUSTED, config_of, model_of, part_of

AUTO = "AutoModelForCausalLM"
FORMAT = 1
"""Part of the cache keys: to be increased when what is cached changes."""

Progress: TypeAlias = Callable[[int, int], None]

_converting = threading.Lock()


def load_gguf(path: Path, dtype: torch.dtype, progress: Progress | None = None) -> tuple[Any, Any]:
    """Return the language model in a GGUF file, and its tokenizer.

    The weights are cached in float32, to which they are dequantised, so the cache loses nothing.

    Parameters
    ----------
    path
        The file.
    dtype
        The dtype of the weights.
    progress
        Called with the number of converted tensors and of all, unless the model is in the cache.
    """
    before = _state(path)
    key = _key(path)
    folder = cached(key)
    if folder is None:
        with _converting, _parsed_once(path, progress):
            network, tokenizer = _parts(str(path.parent), torch.float32, gguf_file=path.name)
            if _state(path) != before:
                raise Error("it changed while it was loaded: load it again when it is complete.")
            folder = store(key, lambda folder: _save(network, tokenizer, folder), _size(network))
            if folder is None:
                return (
                    _parts(str(path.parent), dtype, gguf_file=path.name)
                    if dtype != torch.float32
                    else (network, tokenizer)
                )
        del network, tokenizer
    return _parts(str(folder), dtype)


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes if a file is written to or replaced."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _key(path: Path) -> str:
    versions = [f"{package}-{version(package)}" for package in ("transformers", "tokenizers", "gguf")]
    return "-".join(["gguf", str(FORMAT), *versions, file_hash(path)])


def _parts(source: str, dtype: torch.dtype, **gguf: str) -> tuple[Any, Any]:
    """Return the model and the tokenizer in a folder or, with `gguf_file`, in a GGUF file in this folder."""
    options = {**UNTRUSTED, **gguf}
    network, missing = model_of(AUTO, source, options, config_of(source, options), dtype)
    if missing:
        raise Error(
            f"it is not a language model: it lacks the weights {', '.join(missing[:3])}. Download another file."
        )
    # What transformers notes of the file would keep the model from being saved, though its weights are dequantised.
    network.hf_quantizer = None
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    for weight in network.parameters():  # from the file or from the cache, they are aligned in memory in the same way,
        weight.data = weight.data.clone()  # on which the rounding errors of matrix products depend
    return network, part_of("AutoTokenizer", source, options)


def _size(network: nn.Module) -> int:
    return sum(weight.nbytes for weight in network.parameters()) + 64 * MEBIBYTE


def _save(network: Any, tokenizer: Any, folder: Path) -> None:
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _parsed_once(path: Path, progress: Progress | None) -> Iterator[None]:
    """Let transformers use one reader of a GGUF file for all of its calls in the block, and report their progress.

    transformers has no arguments for these, so the names by which it finds them are replaced in the block. Readers of
    other files are created as usual.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    create, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    readers: list[Any] = []

    class Reader(gguf.GGUFReader):
        def _build_fields(self, *args: Any) -> int:
            # Indexing a memmap takes several times as long as indexing an array.
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment]
            return super()._build_fields(*args)

    def reader(file: Any, *args: Any, **options: Any) -> Any:
        if not os.path.samefile(file, path):
            return create(file, *args, **options)
        if not readers:
            readers.append(Reader(file, *args, **options))
        return readers[0]

    def reported(tensors: Sequence[Any], **options: Any) -> Iterator[Any]:
        for done, tensor in enumerate(tensors):
            if progress is not None:
                progress(done, len(tensors))
            yield tensor
        if progress is not None:
            progress(len(tensors), len(tensors))

    with (
        _replaced(gguf, "GGUFReader", reader),
        _replaced(gguf, "get_tensor_name_map", cache(name_map)),  # otherwise built again for every module
        _replaced(modeling_gguf_pytorch_utils, "tqdm", reported),
    ):
        yield


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
