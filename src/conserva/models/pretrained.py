"""Models, tokenizers and processors through transformers, from files that anyone may have written.

Weights are read from safetensors and GGUF only, and no code runs that comes with a model unless it is asked for.
Whatever transformers, tokenizers and torch raise about files that they cannot use becomes one `Error`.
"""

from __future__ import annotations

import json
import os
import re
import struct
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
"""Options of loading for what never runs code of its own."""

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"

_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_NUMBER = re.compile(r"\d+")
_DISTRIBUTED = re.compile(r"shard-\d+-model-.*\.safetensors")
_READ_WHOLE = (".jinja", ".json", ".model", ".txt")
_NUMBERS_PER_BYTE = 8


@contextmanager
def reading(given: str, advice: str) -> Iterator[None]:
    """Raise an `Error` with what the user gave, and what to do, for all that goes wrong with a model's files."""
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
            f"{given} comes with code of its own, which runs only with conserva.load(..., trust_remote_code=True): "
            "read it first, then ask for it."
        )
    reason = f"{type(failure).__name__}: {' '.join(str(failure).split())[:160]}"
    raise Error(f"{given} could not be loaded ({reason}): {advice}")


def config_of(source: str, options: Mapping[str, Any]) -> Any:
    """Return the configuration of a model in a folder or on the hub; files that are unfit to be read are refused."""
    from transformers import AutoConfig, PreTrainedConfig

    if os.path.isdir(source):
        _check_folder(Path(source))
    if file_of(source, ADAPTER) is not None:
        raise Error(f"it has {ADAPTER}: adapters are not read. Merge it into its model with peft's merge_and_unload.")
    gguf = {key: value for key, value in options.items() if key == "gguf_file"}
    settings, _ = PreTrainedConfig.get_config_dict(source, **gguf)
    check_settings(settings, gguf.get("gguf_file", "config.json"))
    if not options.get("trust_remote_code"):
        _refuse_kernels(settings)
    return AutoConfig.from_pretrained(source, **options)


def part_of(auto: str, source: str, options: Mapping[str, Any]) -> Any:
    """Return a tokenizer or a processor that lies beside a model, by one of transformers' auto classes."""
    import transformers

    for file in ("preprocessor_config.json", "processor_config.json"):
        settings = json_of(source, file) if auto != "AutoTokenizer" else None
        check_settings(settings, file)
        if isinstance(settings, dict) and "audio_tokenizer" in settings:
            raise Error(f"{file} names an audio_tokenizer, which is another model: it is not read.")
    found = getattr(transformers, auto).from_pretrained(source, **options)
    if auto == "AutoTokenizer":
        if not isinstance(found.model_max_length, (int, float)):
            raise Error(f"tokenizer_config.json has model_max_length = {found.model_max_length!r:.60}: give a number.")
        found.decode([*found("a")["input_ids"], *found.all_special_ids])  # some that are damaged fail here only
    return found


def model_of(
    auto: str, source: str, options: Mapping[str, Any], config: Any, dtype: torch.dtype | None = None
) -> tuple[Any, list[str]]:
    """Return a model by one of transformers' auto classes, in float32 by default, and its weights that are missing.

    Weights that do not fit the configuration are refused, and so are layers that it has no place for.
    """
    import torch
    import transformers

    held: tuple[int, int] | None
    how = {**options, "dtype": dtype or torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if "gguf_file" in options:
        held = _gguf(Path(source, options["gguf_file"]))
    else:
        held = _safetensors(source, config)
        how["use_safetensors"] = True
    tensors, size = held or (None, None)
    numbers = None if size is None else _NUMBERS_PER_BYTE * size
    with bounded(tensors, numbers, whole=getattr(config, "quantization_config", None) is None):
        model, report = getattr(transformers, auto).from_pretrained(source, **how)
    unfit = sorted(report["mismatched_keys"], key=str)
    if "gguf_file" in options:  # of which transformers puts any shape in place
        with torch.device("meta"):
            asked = type(model)(model.config).state_dict()
        unfit += [
            (name, one.shape, asked[name].shape)
            for name, one in model.state_dict().items()
            if name in asked and one.shape != asked[name].shape
        ]
    if unfit:
        name, found, wanted = unfit[0][:3]
        raise Error(
            f"its file has {name} in the shape {tuple(found)}, its configuration asks for {tuple(wanted)}: they "
            "are not of one model. Save it again with save_pretrained, or download it again."
        )
    known = {_NUMBER.sub("#", name) for name in model.state_dict()}
    if more := sorted(name for name in report["unexpected_keys"] if _NUMBER.sub("#", name) in known):
        raise Error(
            f"its file has weights for {more[0]}, which config.json has no place for: it asks for fewer layers than "
            "there are. Mend config.json."
        )
    return model, sorted(report["missing_keys"])


def file_of(source: str, file: str) -> Path | None:
    """Return a file that lies beside a model, in a folder or on the hub; None if there is none."""
    from transformers.utils.hub import cached_file

    quietly = {
        f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    path = cached_file(source, file, **quietly)
    return None if path is None else Path(path)


def json_of(source: str, file: str) -> Any:
    """Return what a JSON file beside a model holds; None if there is no such file."""
    path = file_of(source, file)
    if path is None:
        return None
    try:
        return json.loads(read_text(path, file, LARGEST_SETTINGS))
    except (ValueError, RecursionError) as error:
        raise Error(f"{file} is not JSON ({str(error)[:80]}): save the model again, or download it again.") from None


# What is refused.


def _check_folder(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if _DISTRIBUTED.fullmatch(path.name):
            raise Error(f"it has {path.name!r}, a part of a distributed checkpoint: save it with save_pretrained.")
        if path.suffix in _READ_WHOLE and not path.is_dir():
            check_readable(path, repr(path.name), LARGEST_SETTINGS)


def _refuse_kernels(settings: Any) -> None:
    """Refuse a configuration that names code on the hub by which attention is to be computed."""
    left = [settings]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            for key, value in one.items():
                if "attn_implementation" in str(key) and "/" in json.dumps(value):
                    raise Error(f"config.json has {key} = {value!r:.80}, which is code on the hub: take it out.")
                left.append(value)
        elif isinstance(one, list):
            left += one


def _safetensors(source: str, config: Any) -> tuple[int, int] | None:
    """Return how many tensors a model's files hold, and how many bytes they have; other files are refused.

    None of a model on the hub whose safetensors are not in its main branch: transformers knows where to find them.
    """
    from safetensors import safe_open

    named = getattr(config, "transformers_weights", None)
    wanted = (WEIGHTS, INDEX) if named is None else (str(named),)
    path = next((path for path in (file_of(source, file) for file in wanted) if path is not None), None)
    if path is None:
        if not os.path.isdir(source) and named is None:
            return None
        raise Error(
            f"it could not be loaded: it has no {' and no '.join(wanted)}. Other formats are not read, since code may "
            "hide in them: save it with save_pretrained, or download its safetensors."
        )
    files = [path]
    if path.name.endswith(".index.json"):
        files = [_shard(source, file, path.name) for file in _shards(path)]
    elif not _SHARD.fullmatch(wanted[0]):
        raise Error(f"config.json names the weights {str(named)!r}: only safetensors are read.")
    tensors = 0
    for file in files:
        with safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    return tensors, sum(os.path.getsize(file) for file in files)


def _shards(path: Path) -> list[str]:
    """Return the files that an index names."""
    try:
        index = json.loads(read_text(path, path.name, LARGEST_SETTINGS))
    except (ValueError, RecursionError) as error:
        raise Error(f"{path.name} is not JSON ({str(error)[:80]}): save the model again.") from None
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not weights or not isinstance(index.get("metadata"), dict):
        raise Error(f"{path.name} has no weight_map and metadata: save the model again with save_pretrained.")
    if wrong := [one for one in weights.values() if not isinstance(one, str) or not _SHARD.fullmatch(one)]:
        raise Error(
            f"{path.name} names {wrong[0]!r:.80}: only safetensors in the same folder are read, since code may hide in "
            "other files. Save the model again with save_pretrained."
        )
    return sorted(set(weights.values()))


def _shard(source: str, file: str, index: str) -> Path:
    path = file_of(source, file)
    if path is None:
        raise Error(f"{index} names {file!r}, which is not there: save or download the model again.")
    return path


def _gguf(path: Path) -> tuple[int, int]:
    """Return how many tensors a GGUF file says that it holds, and how many bytes it has."""
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:4] != b"GGUF":
        raise Error("it is not a GGUF file: download it again.")
    return struct.unpack("<Q", head[8:16])[0], path.stat().st_size
