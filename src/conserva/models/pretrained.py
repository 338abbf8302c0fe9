"""Loading of models, tokenizers and processors with transformers, from untrusted files.

Weights are read from safetensors and GGUF only, and code in a model's repository runs only with
`trust_remote_code=True`. Exceptions of transformers, tokenizers and torch about unusable files become an `Error`.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import LARGEST_SETTINGS, check_readable, read_text
from .._util.text import printable
from ..errors import Error
from .bounds import bounded, check_settings
from .quiet import quiet_loading

if TYPE_CHECKING:
    import torch

UNTRUSTED: Mapping[str, Any] = {"trust_remote_code": False}
"""Loading options that never run code from a model's repository."""

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"

_one_at_a_time = threading.RLock()
"""transformers replaces functions of its own while it builds a model, and threads would restore each other's."""

_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_NUMBER = re.compile(r"\d+")
_DISTRIBUTED = re.compile(r"shard-\d+-model-.*\.safetensors")
_READ_WHOLE = (".jinja", ".json", ".model", ".txt")
_NUMBERS_PER_BYTE = 8


@contextmanager
def reading(given: str, advice: str) -> Iterator[None]:
    """Convert any exception raised in the block to an `Error`.

    Parameters
    ----------
    given
        The model as the user gave it, such as "model='bert-base-uncased'".
    advice
        What the user can do about it.
    """
    failure: BaseException
    try:
        with quiet_loading():
            yield
        return
    except Error as error:
        raise (error if printable(given) in str(error) else type(error)(f"{given}: {error}")) from None
    except Exception as error:
        failure = error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # a panic in Rust
            raise
        failure = error
    if "trust_remote_code" in str(failure):
        raise Error(
            f"{given} contains code of its own, which runs only with conserva.load(..., trust_remote_code=True): "
            "read the code before you do that."
        )
    reason = f"{type(failure).__name__}: {' '.join(str(failure).split())[:160]}"
    raise Error(f"{given} could not be loaded ({reason}): {advice}")


def config_of(source: str, options: Mapping[str, Any]) -> Any:
    """Return the configuration of a model in a folder or on the hub; raise an `Error` for files that are unsafe."""
    from transformers import AutoConfig, PreTrainedConfig

    if os.path.isdir(source):
        _check_folder(Path(source))
    if file_of(source, ADAPTER) is not None:
        raise Error(f"it has {ADAPTER}: adapters are not supported. Merge it with peft's merge_and_unload.")
    gguf = {key: value for key, value in options.items() if key == "gguf_file"}
    settings, _ = PreTrainedConfig.get_config_dict(source, **gguf)
    check_settings(settings, gguf.get("gguf_file", "config.json"))
    if not options.get("trust_remote_code"):
        _refuse_kernels(settings)
    if gguf:
        return AutoConfig.for_model(**settings)  # `from_pretrained` would parse the file again
    return AutoConfig.from_pretrained(source, **options)


def part_of(auto: str, source: str, options: Mapping[str, Any]) -> Any:
    """Return the tokenizer or processor of a model, loaded by the transformers auto class with the name `auto`."""
    import transformers

    for file in ("preprocessor_config.json", "processor_config.json"):
        settings = json_of(source, file) if auto != "AutoTokenizer" else None
        check_settings(settings, file)
        if isinstance(settings, dict) and "audio_tokenizer" in settings:
            raise Error(f"{file} names an audio_tokenizer, which is another model: this is not supported.")
    part = getattr(transformers, auto).from_pretrained(source, **options)
    if auto == "AutoTokenizer":
        if not isinstance(part.model_max_length, (int, float)):
            raise Error(f"tokenizer_config.json has model_max_length = {part.model_max_length!r:.60}: give a number.")
        part.decode([*part("a")["input_ids"], *part.all_special_ids])  # some damaged tokenizers fail only here
    return part


def model_of(
    auto: str, source: str, options: Mapping[str, Any], config: Any, dtype: torch.dtype | None = None
) -> tuple[Any, list[str]]:
    """Return a model loaded by the transformers auto class `auto`, and the names of weights missing from its files.

    Weights with other shapes than the configuration has, and weights of additional layers, raise an `Error`.
    """
    import torch
    import transformers

    counts: tuple[int, int] | None
    loading = {"dtype": dtype or torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    arguments = {**options, **loading}
    if "gguf_file" in options:
        counts = _gguf(Path(source, options["gguf_file"]))
        arguments["config"] = config
    else:
        counts = _safetensors(source, config)
        arguments["use_safetensors"] = True
    tensors, size = counts or (None, None)
    numbers = None if size is None else _NUMBERS_PER_BYTE * size
    with _one_at_a_time, bounded(tensors, numbers, whole=getattr(config, "quantization_config", None) is None):
        model, report = getattr(transformers, auto).from_pretrained(source, **arguments)
    mismatched = sorted(report["mismatched_keys"], key=str)
    if "gguf_file" in options:  # transformers does not check the shapes of weights from GGUF files
        with torch.device("meta"):
            expected = type(model)(model.config).state_dict()
        mismatched += [
            (name, tensor.shape, expected[name].shape)
            for name, tensor in model.state_dict().items()
            if name in expected and tensor.shape != expected[name].shape
        ]
    if mismatched:
        name, shape, wanted = mismatched[0][:3]
        raise Error(
            f"its file has {name} in the shape {tuple(shape)}, its configuration describes {tuple(wanted)}: they "
            "belong to different models. Save it again with save_pretrained, or download it again."
        )
    known = {_NUMBER.sub("#", name) for name in model.state_dict()}
    if more := sorted(name for name in report["unexpected_keys"] if _NUMBER.sub("#", name) in known):
        raise Error(f"its file has weights for {more[0]}, but config.json describes fewer layers: correct config.json.")
    return model, sorted(report["missing_keys"])


def file_of(source: str, file: str) -> Path | None:
    """Return the path of a file of a model in a folder or on the hub; None if it does not exist."""
    from transformers.utils.hub import cached_file

    none_if_missing = {
        f"_raise_exceptions_for_{reason}": False for reason in ("missing_entries", "connection_errors", "gated_repo")
    }
    path = cached_file(source, file, **none_if_missing)
    return None if path is None else Path(path)


def json_of(source: str, file: str) -> Any:
    """Return the content of a JSON file of a model; None if it does not exist."""
    path = file_of(source, file)
    if path is None:
        return None
    try:
        return json.loads(read_text(path, file, LARGEST_SETTINGS))
    except (ValueError, RecursionError) as error:
        raise Error(f"{file} is not JSON ({str(error)[:80]}): save the model again, or download it again.") from None


# Checks of untrusted files.


def _check_folder(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if _DISTRIBUTED.fullmatch(path.name):
            raise Error(f"it has {path.name!r}, a shard of a distributed checkpoint: save it with save_pretrained.")
        if path.suffix in _READ_WHOLE and not path.is_dir():
            check_readable(path, repr(path.name), LARGEST_SETTINGS)


def _refuse_kernels(settings: Any) -> None:
    """Raise an `Error` if a configuration names code on the hub as its attention implementation."""
    remaining = [settings]
    while remaining:
        entry = remaining.pop()
        if isinstance(entry, Mapping):
            for key, value in entry.items():
                if "attn_implementation" in str(key) and "/" in json.dumps(value):
                    raise Error(f"config.json has {key} = {value!r:.80}, which is code on the hub: remove it.")
                remaining.append(value)
        elif isinstance(entry, list):
            remaining += entry


def _safetensors(source: str, config: Any) -> tuple[int, int] | None:
    """Return the number of tensors and of bytes in a model's safetensors files; raise an `Error` for other formats.

    None for a model on the hub whose safetensors are not on its main branch, where transformers finds them.
    """
    from safetensors import safe_open

    named = getattr(config, "transformers_weights", None)
    wanted = (WEIGHTS, INDEX) if named is None else (str(named),)
    path = next((path for path in (file_of(source, file) for file in wanted) if path is not None), None)
    if path is None:
        if not os.path.isdir(source) and named is None:
            return None
        raise Error(
            f"it could not be loaded: it has no {' and no '.join(wanted)}. Other formats are not supported, since they "
            "can contain code: save it with save_pretrained, or download its safetensors."
        )
    files = [path]
    if path.name.endswith(".index.json"):
        files = [_shard(source, file, path.name) for file in _shards(path)]
    elif not _SHARD.fullmatch(wanted[0]):
        raise Error(f"config.json names the weights {str(named)!r}: only safetensors are supported.")
    tensors = 0
    for file in files:
        with safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    return tensors, sum(os.path.getsize(file) for file in files)


def _shards(path: Path) -> list[str]:
    """Return the file names in an index of shards."""
    try:
        index = json.loads(read_text(path, path.name, LARGEST_SETTINGS))
    except (ValueError, RecursionError) as error:
        raise Error(f"{path.name} is not JSON ({str(error)[:80]}): save the model again.") from None
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not weights or not isinstance(index.get("metadata"), dict):
        raise Error(f"{path.name} has no weight_map and metadata: save the model again with save_pretrained.")
    if wrong := [file for file in weights.values() if not isinstance(file, str) or not _SHARD.fullmatch(file)]:
        raise Error(
            f"{path.name} names {wrong[0]!r:.80}: only safetensors in the same folder are supported, since other files "
            "can contain code. Save the model again with save_pretrained."
        )
    return sorted(set(weights.values()))


def _shard(source: str, file: str, index: str) -> Path:
    path = file_of(source, file)
    if path is None:
        raise Error(f"{index} names {file!r}, which does not exist: save or download the model again.")
    return path


def _gguf(path: Path) -> tuple[int, int]:
    """Return the number of tensors according to the header of a GGUF file, and its size in bytes."""
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:4] != b"GGUF":
        raise Error("it is not a GGUF file: download it again.")
    return struct.unpack("<Q", head[8:16])[0], path.stat().st_size
