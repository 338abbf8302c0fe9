"""Tiny models of several kinds in folders and in a GGUF file, whose files are then changed."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import conserva
from conserva.models.quiet import quiet_loading
from language import TEMPLATE, byte_tokenizer

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij.,", "a joy", "joy", "##y", "film"]


def tokenizer() -> PreTrainedTokenizerFast:
    found = Tokenizer(models.WordPiece({word: i for i, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=16, **names)


_SMALL: dict[str, Any] = {
    "vocab_size": len(_WORDS), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2,
}  # fmt: skip


def written(folder: Path) -> dict[str, Path]:
    """Write the models, and return where they are by their kinds."""
    torch.manual_seed(0)
    text, shards, sentences, causal = (folder / name for name in ("text", "shards", "sentences", "causal"))
    with quiet_loading():
        classifier = BertForSequenceClassification(BertConfig(**_SMALL, id2label={0: "bad", 1: "good"}))
        classifier.save_pretrained(text)
        classifier.save_pretrained(shards, max_shard_size="1KB")
        BertModel(BertConfig(**_SMALL)).save_pretrained(sentences)
        pieces = byte_tokenizer(chat_template=TEMPLATE)
        sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64}
        GPT2LMHeadModel(GPT2Config(vocab_size=len(pieces), bos_token_id=0, eos_token_id=1, **sizes)).save_pretrained(
            causal
        )
    for one in (text, shards, sentences):
        tokenizer().save_pretrained(one)
    pieces.save_pretrained(causal)
    parts = [
        {"idx": 0, "type": "st.models.Transformer", "path": ""},
        {"idx": 1, "type": "st.models.Pooling", "path": "1_P"},
    ]
    (sentences / "modules.json").write_text(json.dumps(parts))
    (sentences / "1_P").mkdir()
    (sentences / "1_P" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (text / "special_tokens_map.json").write_text(json.dumps({"unk_token": "[UNK]", "pad_token": {"content": "[PAD]"}}))
    (text / "added_tokens.json").write_text(json.dumps({"[NEW]": len(_WORDS)}))
    return {
        "text": text, "shards": shards, "sentences": sentences, "causal": causal,
        "image": _image(folder / "image"), "speech": _speech(folder / "speech"), "gguf": gguf_file(folder / "a.gguf"),
    }  # fmt: skip


def explained(task: Any) -> None:
    """Explain something, whatever the task takes."""
    kind = type(task).__name__
    if kind == "Causal" and task.tokenizer.chat_template:
        conserva.explain(task, [{"role": "user", "content": "a"}])
    given: dict[str, Any] = {
        "Image": np.zeros((32, 32), np.uint8), "Speech": (np.zeros(100, np.float32), 1000), "Similarity": ("a b", "a."),
    }  # fmt: skip
    conserva.explain(task, given.get(kind, "a joy."))


class _Canary:
    """What makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def planted(folder: Path, canary: Path) -> Path:
    """Put pickles and programs into a folder that would make another one, under all names that may be looked for."""
    folder.mkdir(exist_ok=True)
    for name in _PICKLES:
        (folder / name).write_bytes(pickle.dumps(_Canary(canary)))
    program = f"import os\nos.makedirs({str(canary)!r}, exist_ok=True)\n"
    (folder / "custom_generate").mkdir()
    for name in (*(f"{module}.py" for module in _MODULES), "custom_generate/generate.py"):
        (folder / name).write_text(program)
    return folder


_PICKLES = (
    "pytorch_model.bin", "model.bin", "weights.pt", "adapter_model.bin", "training_args.bin", "optimizer.pt",
    "vocab.pkl", "vocab.bin", "corpus.bin", "tf_model.h5", "flax_model.msgpack", "spk_dict.pt", "state.pt",
    ".metadata", "a.safetensors.bin", "model.ckpt",
)  # fmt: skip
_MODULES = ("configuration_a", "modeling_a", "tokenization_a", "processing_a", "__init__", "setup", "conftest")

_CLASSES = {
    "AutoConfig": "configuration_a.C",
    **{
        f"AutoModel{name}": "modeling_a.C"
        for name in ("", "ForSequenceClassification", "ForCausalLM", "ForImageClassification", "ForSpeechSeq2Seq")
    },
    "AutoTokenizer": ["tokenization_a.C", "tokenization_a.C"],
    "AutoImageProcessor": "processing_a.C",
    "AutoFeatureExtractor": "processing_a.C",
    "AutoProcessor": "processing_a.C",
}


def _set(file: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))

    return change


def _gone(*files: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / file).unlink(missing_ok=True) for file in files] and None


def _sharded(shard: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink(missing_ok=True)
        index = {"metadata": {"total_size": 1}, "weight_map": {"a.weight": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


TRAPS: dict[str, Callable[[Path], None]] = {
    "no safetensors": _gone("model.safetensors", "model.safetensors.index.json"),
    "no safetensors, an index of pickles": _set(
        "pytorch_model.bin.index.json", weight_map={"a": "model.bin"}, metadata={}
    ),
    **{
        f"a shard {name}": _sharded(name)
        for name in ("pytorch_model.bin", "../x.bin", "/dev/zero", "a.safetensors.bin", "")
    },
    "weights by name": _set("config.json", transformers_weights="adapter_model.bin"),
    "weights by path": _set("config.json", transformers_weights="../x/model.safetensors"),
    "an adapter": _set("adapter_config.json", peft_type="LORA", base_model_name_or_path="."),
    "a kernel": _set("config.json", attn_implementation="evil/kernel"),
    "a hidden kernel": _set(
        "config.json", _attn_implementation="evil/kernel", text_config={"attn_implementation": "a/b"}
    ),
    "code": _set("config.json", auto_map=_CLASSES),
    "code of a type that is not known": _set("config.json", auto_map=_CLASSES, model_type="a", architectures=["A"]),
    "code that is trusted": _set("config.json", auto_map=_CLASSES, model_type="a", trust_remote_code=True),
    "code of a tokenizer": _set("tokenizer_config.json", auto_map=_CLASSES, tokenizer_class="C"),
    "code of another's tokenizer": _set(
        "tokenizer_config.json", auto_map=["x/y--tokenization_a.C", None], use_fast=False
    ),
    "code of a processor": _set("preprocessor_config.json", auto_map=_CLASSES, image_processor_type="C"),
    "code of an extractor": _set("preprocessor_config.json", auto_map=_CLASSES, feature_extractor_type="C"),
    "another model in a processor": _set("processor_config.json", auto_map=_CLASSES, audio_tokenizer={"a": "."}),
    "a template": _set("tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "a template that imports": _set(
        "tokenizer_config.json", chat_template="{% import 'os' as os %}{{ os.mkdir('x') }}"
    ),
    "generation": _set("generation_config.json", custom_generate="./custom_generate", trust_remote_code=True),
    "another configuration": _set("config.json", configuration_files=["config.4.0.0.json"]),
    "modules elsewhere": lambda folder: _write(folder / "modules.json", [{"type": "x.Pooling", "path": "../../etc"}]),
    "modules of code": lambda folder: _write(folder / "modules.json", [{"type": "modeling_a.C", "path": ""}]),
    "slow": _gone("tokenizer.json"),
    "a type with pickles": _set("config.json", model_type="transfo-xl"),
    "quantised": _set("config.json", quantization_config={"quant_method": "torchao", "quant_type": "evil"}),
}
"""Changes to a folder that ask for what is planted there."""


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def _image(folder: Path) -> Path:
    from saved_image_models import saved

    return saved(folder)


def _speech(folder: Path) -> Path:
    from tiny_speech import speech

    task = speech()
    task.extractor.save_pretrained(folder)
    with quiet_loading():
        copy.deepcopy(task.network).float().save_pretrained(folder)  # tests share the task
    task.tokenizer.save_pretrained(folder)
    return folder


def gguf_file(path: Path, **changes: Any) -> Path:
    """Write a language model as a GGUF file."""
    import gguf

    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    file = gguf.GGUFWriter(path, "llama")
    numbers = {
        "block_count": 1, "context_length": 64, "embedding_length": 16, "feed_forward_length": 16, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 1e4, "rope_dimension_count": 8,
        "vocab_size": len(words), "tokenizer_model": "llama", "token_scores": [0.0] * len(words),
        "token_list": [word.encode() for word in words], "token_types": [2, 3, 3, *[6] * 256, *[1] * 4],
        "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0,
    }  # fmt: skip
    for name, value in numbers.items():
        getattr(file, f"add_{name}")(changes.get(name, value))
    shapes = {"token_embd": (len(words), 16), "output": (len(words), 16), "output_norm": (16,)}
    shapes |= {f"blk.0.attn_{name}": (16, 16) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (16, 16) for name in ("gate", "up", "down")}
    shapes |= {f"blk.0.{name}_norm": (16,) for name in ("attn", "ffn")}
    drawn = np.random.default_rng(0)
    for name, shape in shapes.items():
        file.add_tensor(f"{name}.weight", drawn.normal(size=shape).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
