"""Tiny, randomly initialised models of every Hugging Face type that can be built without the hub.

Every default configuration is shrunk by attribute name alone; `_OVERRIDES` holds the few exceptions. The tables at the
end are static, so that collecting tests stays cheap; `scripts/discover_zoo.py` prints them anew.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

_VOCABULARY, _FIRST_TEXT_ID = 99, 40  # every special token id lies below _FIRST_TEXT_ID

# Attribute name (whole-name regular expression) -> the most it may be; the first match wins, None keeps the default.
_LIMITS: tuple[tuple[str, int | None], ...] = (
    (r"(task_|modality_)?type_vocab_size|num_feat_extract_layers|xpath_unit_hidden_size|num_residual_layers", None),
    (r"num_kv_shared_layers|num_nextn_predict_layers", 0),
    (r"topk_group|first_k_dense_replace|num_dense_layers|max_window_layers|(mamba_)?n_?groups", 1),
    (r"num_frames|n_group|num_expert_group|stage_num_blocks|blocks_per_stage|(en|de)coder_sparse_step", 2),
    (r"mm_tokens_per_image|num_filters|pos_emb_(height|width)|num_conv_pos_embedding_groups|rotary_dim|index_topk", 4),
    (r"num_hash_buckets|qk_head_dim|mamba_d_head|mamba_head_?dim|.*(lora|laurel|adapter|norm|low)_?rank", 16),
    (r"base_channels|visual_feat_dim|visual_embedding_dim|upsample_groups", 32),
    (r".*vocab_size(_base|_per_layer_input)?", _VOCABULARY),
    (r".*(kv_heads|key_value_heads|kv_n_heads|num_key_heads|query_groups|key_value_attention_heads)", 2),
    (r".*(attention_heads|num_heads|n_heads?|attn_heads|resampler_heads|linear_num_value_heads)", 4),
    (r"(.*_)?(layers?|depth)|depths|num_blocks|num_self_attends_per_block|.*experts_per_tok(en)?|moe_(top_?)?k", 2),
    (r"patch_size|(mamba_d_|ssm_)?state(_size)?|(mamba_)?chunk_size|.*_hidden_size_.*|hidden_size_per_layer_input", 8),
    (r"(.*_)?(head_dim|dim_head|attention_head_size|kv_channels)|d_kv|d_head", 8),
    (r".*(intermediate_sizes?|intermediate_dim|ffn_dim|ffn_hidden_size|d_ff|dff|dim_ff|d_inner|mlp_dim)", 48),
    (r".*(feed_forward_hidden_size|dim_feedforward|feedforward_dim|feed_forward_size|linear_units)", 48),
    (r".*(routed_experts|num_experts|local_experts)|zero_expert_num", 4),
    (r"(local_)?attention_window(_size)?|sliding_window(_size)?|local_attention|attention_chunk_size", 4),
    (r"max_.*position.*|n_positions|n_ctx|max_seq_len|context_length|model_max_length", 128),
    (r"image_size|img_size|pretrain_image_size|input_resolution", 32),
    (r".*(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|emb_dim|embedding_dim|emb_size)", 32),
    (r"dim|.*(projection_dim|projection_size|proj_dim|output_dim|d_latents|lru_width|pooler_output_size)", 32),
    (r".*(conv_channels|codevector_dim|classifier_proj_size|xvector_output_dim|output_channels)", 32),
    (r"num_queries|num_latents|num_query_tokens|num_detection_tokens|.*resampler_n_latents", 5),
    (r"num_conv_pos_embeddings|num_mel_bins|input_feat_per_channel|feature_projection_input_dim|n_mel_bins", 16),
)
_STAGED = {"embed_dim": 16, "image_size": 64, "window_size": 2}  # a pyramid halves the image from stage to stage
_NEVER_NONE = ("head_dim", "num_key_value_heads", "vocab_size", "n_routed_experts", "num_experts_per_tok")
_TEXT_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")  # numbered in this order
_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers")

# Only what the rules above cannot know. Dotted names reach into sub-configurations.
_HYBRID = ["linear_attention", "hybrid", "hybrid"]  # two, since they share their weights
_ZAMBA = {"num_hidden_layers": 3, "layers_block_type": _HYBRID, "attention_hidden_size": 64, "attention_head_dim": 16}
_OVERRIDES: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64},
    "bamba": {"attn_layer_indices": [1]},
    "bridgetower": {f"{part}hidden_size": 64 for part in ("", "text_config.", "vision_config.")},
    "cvt": {"depth": [1, 2, 3]},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "dots1": {"n_shared_experts": 1},
    "esmc": {"num_key_value_heads": 4, "vocab_size": _VOCABULARY},
    "falcon_h1": {"mamba_d_ssm": 32},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 32},
    "levit": {"image_size": 64, "patch_size": 16, "down_ops": [["Subsample", 16, n, 4, 2, 2] for n in (2, 4)]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "mistral4": {"head_dim": 16},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 32},
    "mobilevit": {"image_size": 128},
    "mobilevitv2": {"image_size": 128},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xmod": {"default_language": "en_XX"},
    "zamba": _ZAMBA,
    "zamba2": {"n_mamba_heads": 4, "hybrid_layer_ids": [1, 2], **_ZAMBA},
}
_IMAGE_LISTS = ("idefics2", "idefics3", "modernvbert", "smolvlm", "ultravbert")  # several images to a sample
# Multimodal types fed with text alone, since only their processors can lay out an image.
_TEXT_ONLY = """aria embedding_gemma2 fuyu gemma4 gemma4_unified kimi_k25 llava_next llava_next_video llava_onevision
    minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl molmo2 muse_glimmer t5gemma2 unlimited_ocr video_llama_3
    video_llava vipllava"""


@dataclass(frozen=True, order=True)
class Specimen:
    """A model type with the auto class that builds it."""

    model_type: str
    auto_class: str
    family: str


def _limit(name: str, default: Any) -> Any:
    limit = next((limit for pattern, limit in _LIMITS if re.fullmatch(pattern, name)), None)
    return default if limit is None else limit


def _names_layers(name: str, values: Any, count: int) -> bool:
    """Whether an attribute lists layers by their indices."""
    indices = isinstance(values, list) and all(type(v) is int and 0 <= v < count for v in values)
    return indices and values == sorted(set(values)) and re.search(r"ind|idx|layers|layer_ids", name) is not None


def _kept_layers(config: Any, count: int) -> list[int]:
    """Choose the layers to keep: at least two, and one of every kind that the per-layer attributes tell apart."""
    kept: list[int] = []
    for name, values in vars(config).items():
        trait = [i in values for i in range(count)] if _names_layers(name, values, count) else values
        if isinstance(trait, list) and len(trait) == count:
            for i in range(count):
                if all(trait[i] != trait[j] for j in kept):
                    kept.append(i)
    kept += [i for i in range(count) if i not in kept][: max(0, 2 - len(kept))]
    return sorted(kept)


def shrink(config: Any) -> Any:
    """Shrink a configuration in place, sub-configurations included, by attribute name alone."""
    staged = _STAGED if "depths" in vars(config) else {}
    count_name = next((n for n in _LAYER_COUNTS if type(vars(config).get(n)) is int and not staged), None)
    count = vars(config)[count_name] if count_name else 0
    kept = _kept_layers(config, count)
    special = iter(range(3, _FIRST_TEXT_ID))
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            shrink(value)
        elif value is None and name in _NEVER_NONE:
            setattr(config, name, _limit(name, None))
        elif name in _LAYER_COUNTS and staged:
            continue  # the number of stages
        elif name == "num_key_value_heads" and "kv_lora_rank" in vars(config):
            setattr(config, name, 4)  # a latent attention expands to every head
        elif name in _TEXT_TOKENS:
            setattr(config, name, _TEXT_TOKENS.index(name))
        elif re.fullmatch(r".*(token_id|token_index|_token_ids|start_id|end_id)", name) and value is not None:
            setattr(config, name, [next(special) for _ in value] if isinstance(value, list) else next(special))
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        elif name == count_name:
            setattr(config, name, len(kept))
        elif type(value) is int:
            setattr(config, name, min(value, staged.get(name, _limit(name, value))))
        elif isinstance(value, (list, tuple)) and value:
            setattr(config, name, _shrink_list(name, list(value), count, kept))
        elif name == "rope_parameters" and "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ()):
            third, rest = divmod(int(8 * value.get("partial_rotary_factor", 1.0)) // 2, 3)
            value["mrope_section"] = [third + rest, third, third]
    return config


def _shrink_list(name: str, values: list[Any], count: int, kept: list[int]) -> list[Any]:
    if _names_layers(name, values, count):
        return [kept.index(i) for i in values if i in kept]
    if count and len(values) == count:
        values = [values[i] for i in kept]
    if not all(type(v) is int for v in values):
        return values
    limit = _limit(name, None)
    if "heads" in name:
        return [max(1, v * 2 // values[0]) for v in values]
    if limit is not None and (name in ("image_size", "patch_size", "depth", "depths") or len(set(values)) == 1):
        return [min(v, limit) for v in values]
    if limit is not None or re.search(r"hidden_sizes|dims?$|channels", name):
        return [v if v < 8 else max(8, v // 4) for v in values]  # widths in proportion
    return values


def configuration(model_type: str) -> Any:
    """Give the shrunk configuration of a model type."""
    from transformers import AutoConfig

    config = shrink(AutoConfig.for_model(model_type))
    for name, value in _OVERRIDES.get(model_type, {}).items():
        *parents, leaf = name.split(".")
        setattr(reduce(getattr, parents, config), leaf, value)
    config.num_labels = 3
    config.architectures = config.architectures or []  # types with several heads look their own up here
    return config


def _reinitialise(model: nn.Module) -> None:
    """Give every parameter a non-trivial value; what Hugging Face put there tells gains, biases and scales apart."""
    from transformers.pytorch_utils import Conv1D

    generator = torch.Generator().manual_seed(0)
    done: set[int] = set()  # a tied parameter has several owners
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in done or not parameter.numel():
                continue
            done.add(id(parameter))
            noise = torch.randn(parameter.shape, generator=generator)
            low, high = parameter.min().item(), parameter.max().item()
            if low != high and not parameter.requires_grad:
                continue  # a table of sines, not learned
            if isinstance(module, nn.Embedding):
                value = 0.5 * noise
            elif name == "weight" and isinstance(module, (nn.Linear, Conv1D)):
                value = noise / math.sqrt(parameter.shape[isinstance(module, nn.Linear)])
            elif name == "weight" and isinstance(module, nn.modules.conv._ConvNd):
                value = 1.25 * noise / math.sqrt(parameter[0].numel())  # deep stacks of convolutions fade out
            elif name == "weight" and isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)):
                value = 1 + 0.1 * noise
            elif low == high:  # a bias, or else a gain, a gate or the tiny scale of a layer
                value = (0.0 if low == 0 and noise.numel() > 1 else min(max(low, 0.5), 1.0)) + 0.1 * noise
            else:
                value = noise / math.sqrt(parameter.shape[-1])
            with torch.no_grad():
                parameter.copy_(value)


def build(
    specimen: Specimen, *, dtype: torch.dtype = torch.float32, attn_implementation: str | None = None
) -> nn.Module:
    """Build the tiny model in evaluation mode; the same specimen always has the same weights."""
    import transformers

    torch.manual_seed(0)
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    if dtype == torch.float64:
        options["experts_implementation"] = "eager"  # the grouped product takes no doubles
    auto_class = getattr(transformers, specimen.auto_class)
    model: nn.Module = auto_class.from_config(configuration(specimen.model_type), dtype=dtype, **options)
    _reinitialise(model)
    return model.eval()


def _one_of(config: Any, *names: str) -> Any:
    """Give the first of these attributes that is set, or the configuration itself."""
    return next((getattr(config, n) for n in names if getattr(config, n, None) is not None), config)


def _pixels(model: Any, accepted: Any, batch: int, draw: Callable[..., Tensor]) -> Tensor:
    config = _one_of(model.config, "vision_config", "image_config", "backbone_config")
    channels: int = getattr(config, "num_channels", None) or getattr(config, "in_channels", 3)
    if "image_grid_thw" in accepted:  # images come as one flat list of patches
        return draw(16 * batch, channels * getattr(config, "temporal_patch_size", 1) * config.patch_size**2)
    if "spatial_shapes" in accepted:
        return draw(batch, 16, channels * config.patch_size**2)
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    images = [1] if model.config.model_type in _IMAGE_LISTS else []
    frames = [config.num_frames] if hasattr(config, "num_frames") else images
    return draw(batch, *frames, channels, height, width)


def _sound(model: Any, batch: int, draw: Callable[..., Tensor]) -> Tensor:
    config = _one_of(model.config, "audio_config", "encoder_config", "speech_config", "audio_encoder")
    bins = getattr(config, "num_mel_bins", 16)
    if model.main_input_name == "input_values":  # waves, but for one type that calls its spectrogram so
        return draw(batch, config.max_length, bins) if hasattr(config, "num_mel_bins") else draw(batch, 3200)
    mel_first = hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins")
    if mel_first and not hasattr(config, "input_feat_per_channel"):
        return draw(batch, bins, 2 * config.max_source_positions)
    return draw(batch, 64, bins)


def _with_image_tokens(model: Any, made: dict[str, Any], ids: Tensor) -> Tensor:
    """Put before the text as many image tokens as the vision tower gives features."""
    tower = next(module for module in model.modules() if hasattr(module, "get_image_features"))
    accepted = inspect.signature(tower.get_image_features).parameters
    if "image_sizes" in accepted and accepted["image_sizes"].default is inspect.Parameter.empty:
        made["image_sizes"] = torch.tensor([[32, 32]] * len(ids))
    with torch.no_grad():
        features = tower.get_image_features(**{k: v for k, v in made.items() if k in accepted})
    features = getattr(features, "pooler_output", features)
    rows = sum(f.numel() for f in features) // features[0].shape[-1]
    return torch.cat([torch.full((len(ids), rows // len(ids)), _one_of(model.config, *_IMAGE_TOKENS)), ids], dim=1)


def inputs(specimen: Specimen, model: Any, *, batch: int = 2, length: int = 7) -> dict[str, Any]:
    """Make the keyword arguments of one forward pass."""
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator)
    accepted, config = inspect.signature(model.forward).parameters, model.config
    encodes_and_decodes = getattr(config, "is_encoder_decoder", False)
    ids = torch.randint(_FIRST_TEXT_ID, _VOCABULARY, (batch, length), generator=generator)
    if specimen.auto_class == "AutoModelForSequenceClassification" and encodes_and_decodes:
        ids[:, -1] = config.eos_token_id  # these heads read the hidden state of the end token
    makers: dict[str, Callable[[], Tensor]] = {
        "bbox": lambda: torch.randint(0, 30, (batch, length, 4), generator=generator).sort(dim=-1).values,
        "decoder_input_ids": lambda: ids.flip(-1),
        "image_grid_thw": lambda: torch.tensor([[1, 4, 4]] * batch),
        "input_features": partial(_sound, model, batch, draw),
        "input_ids": lambda: ids,
        "input_values": partial(_sound, model, batch, draw),
        "pixel_values": partial(_pixels, model, accepted, batch, draw),
        "spatial_shapes": lambda: torch.tensor([[4, 4]] * batch),
        "visual_embeds": partial(draw, batch, 5, 32),
        "visual_feats": partial(draw, batch, 5, 32),
        "visual_pos": lambda: torch.rand(batch, 5, 4, generator=generator),
    }
    wanted = set(makers) - {"decoder_input_ids", "input_features", "input_values"}
    if specimen.model_type in _TEXT_ONLY.split():
        wanted -= {"pixel_values", "image_grid_thw"}
    wanted |= {n for n in makers if n in accepted and accepted[n].default is inspect.Parameter.empty}
    wanted |= {model.main_input_name} | ({"decoder_input_ids"} if encodes_and_decodes else set())
    made: dict[str, Any] = {n: make() for n, make in makers.items() if n in wanted and n in accepted}
    made = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in made.items()}
    if "spatial_shapes" in made:
        made["pixel_attention_mask"] = torch.ones(batch, 16, dtype=torch.long)
    if {"pixel_values", "input_ids"} <= set(made) and _one_of(config, *_IMAGE_TOKENS) is not config:
        made["input_ids"] = _with_image_tokens(model, made, ids)
        if "mm_token_type_ids" in accepted:
            made["mm_token_type_ids"] = (made["input_ids"] < _FIRST_TEXT_ID).long()
    flat = [made[n] for n in ("input_ids", "input_values") if n in made and made[n].dim() == 2]
    if "attention_mask" in accepted and flat:
        made["attention_mask"] = torch.ones(flat[0].shape, dtype=torch.long)
    return made | ({"use_cache": False} if "use_cache" in accepted else {})


_TABLE: dict[tuple[str, str], str] = {
    ("AutoModel", "audio"): """lasr_ctc parakeet_ctc""",
    ("AutoModel", "decoder"): """csm gradium_phonon_tts higgs_audio_v2 pocket_tts""",
    ("AutoModel", "encoder"): """dpr embedding_gemma2 splinter""",
    ("AutoModel", "encoder-decoder"): """canary cohere_asr nemotron3_5_asr nemotron_asr_streaming parakeet_rnnt
    parakeet_tdt speech_to_text""",
    ("AutoModel", "moe"): """aria glm4v_moe glm5_next kimi_k25 minimax_m3_vl mistral_large4 openai_privacy_filter
    qwen3_vl_moe unlimited_ocr""",
    ("AutoModel", "multimodal"): """aimv2 altclip aya_vision blip bridgetower chinese_clip clipseg cohere2_vision
    cosmos3_edge cosmos3_omni deepseek_vl exaone4_5 flava florence2 fun_asr_nano glm46v glm4v glm_ocr glmga groupvit
    hunyuan_vl hyperclovax_vision_v2 idefics2 idefics3 internvl kosmos-2.5 lfm2_vl lighton_ocr llava llava_next
    llava_next_video llava_onevision lxmert minicpm_ocr minicpmv4_6 minicpmv4_7 mistral3 molmo2 muse_glimmer owlv2
    owlvit qianfan_ocr qwen2_5_vl qwen2_vl qwen3_vl sam3_lite_text smolvlm tipsv2 udop video_llama_3 video_llava
    vipllava vision-text-dual-encoder visual_bert xclip""",
    ("AutoModel", "vision"): """dinov3_vit dpt glpn mask2former maskformer maskformer-swin mlcd mlcd_vision_model pixio
    sapiens2 swin2sr timesformer videomae vitdet vivit yolos""",
    ("AutoModelForAudioClassification", "audio"): """audio-spectrogram-transformer data2vec-audio hubert sew sew-d
    unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm""",
    ("AutoModelForCausalLM", "decoder"): """apertus bamba bert-generation bitnet blenderbot blenderbot-small codegen
    cohere cohere2 cpmant cwm emu3 ernie4_5 falcon_h1 fuyu gemma3n_text gemma4 gemma4_text gemma4_unified
    gemma4_unified_text gpt_neox_japanese granite granite_swa hrm_text hyperclovax jais2 lfm2 marian mllama moshi
    nanochat olmo_hybrid pegasus prophetnet recurrent_gemma trocr vaultgemma whisper xglm youtu""",
    ("AutoModelForCausalLM", "moe"): """afmoe aria_text bailing_hybrid beam cohere2_moe dbrx deepseek_v32 deepseek_v4
    dots1 ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm_moe_dsa granitemoe granitemoe_swa
    granitemoehybrid granitemoeshared hy_v3 hy_v4 inkling_text kimi_linear kolibri1 laguna lfm2_moe llama4 llama4_text
    longcat_flash mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text nemotron_h olmoe qwen3_5_moe qwen3_5_moe_text
    solar_open zaya""",
    ("AutoModelForCausalLM", "multimodal"): """git got_ocr2 moss_transcribe_diarize phi4_multimodal""",
    ("AutoModelForImageClassification", "vision"): """beit clip cvt data2vec-vision deit dinov2 dinov2_with_registers
    donut-swin hiera ijepa imagegpt levit metaclip_2 mobilevit mobilevitv2 pvt pvt_v2 segformer siglip siglip2
    swiftformer swin swinv2 vit vit_msn""",
    ("AutoModelForSeq2SeqLM", "encoder-decoder"): """encoder-decoder fsmt led longt5 m2m_100 pegasus_x seamless_m4t
    seamless_m4t_v2""",
    ("AutoModelForSeq2SeqLM", "moe"): """nemo_speechlm nllb-moe switch_transformers""",
    ("AutoModelForSeq2SeqLM", "multimodal"): """audioflamingo3 glmasr granite_speech granite_speech_plus musicflamingo
    qwen2_audio qwen3_asr voxtral""",
    ("AutoModelForSequenceClassification", "decoder"): """arcee biogpt bloom ctrl diffllama doge exaone4 falcon gemma
    gemma2 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gptj helium hunyuan_v1_dense llama minicpm3
    ministral ministral3 mistral modernbert-decoder mpt nemotron olmo olmo2 olmo3 openai-gpt opt persimmon phi phi3
    qwen2 qwen3 qwen3_5_text seed_oss smollm3 stablelm starcoder2 xlnet zamba zamba2""",
    ("AutoModelForSequenceClassification", "encoder"): """albert bert big_bird camembert canine convbert data2vec-text
    deberta deberta-v2 distilbert electra ernie esm esmc eurobert flaubert funnel gte ibert jina_embeddings_v3 layoutlm
    lilt longformer luke markuplm megatron-bert mobilebert modernbert mpnet nomic_bert nystromformer perceiver rembert
    roberta roberta-prelayernorm roc_bert roformer squeezebert tapas ultrabert xlm xlm-roberta xlm-roberta-xl xmod
    yoso""",
    ("AutoModelForSequenceClassification", "encoder-decoder"): """bart bigbird_pegasus mbart mt5 mvp plbart t5 t5gemma
    t5gemma2 umt5""",
    ("AutoModelForSequenceClassification", "moe"): """axk1 axk2 deepseek_v2 deepseek_v3 gpt_oss hunyuan_v1_moe jamba
    jetmoe minimax mistral4 mixtral phimoe qwen2_moe qwen3_moe qwen3_next""",
    ("AutoModelForSequenceClassification", "multimodal"): """gemma3 layoutlmv3 modernvbert qwen3_5 ultravbert""",
}
SPECIMENS: tuple[Specimen, ...] = tuple(sorted(Specimen(t, *key) for key, ts in _TABLE.items() for t in ts.split()))

_REASONS: dict[str, str] = {
    "does not build once shrunk": """autoformer chameleon cohere_compass cohere_compass_text deepseek_ocr2
    deepseek_vl_hybrid diffusion_gemma evolla gemma4_assistant granite4_vision informer lw_detr moonshine_streaming
    musicgen musicgen_melody ovis2 qwen4_exp qwen4_exp_text reformer rf_detr time_series_transformer""",
    "does not run on generic sizes and inputs": """bark blip-2 bros clap clvp d_fine decision_transformer deimv2
    depth_pro dia ernie4_5_vl_moe gemma4_audio gemma4_unified_assistant glm_image granite_speech5_ctc grounding-dino
    idefics instructblip instructblipvideo kosmos-2 kyutai_speech_to_text lightglue mgp-str mimi_decoder mimi_encoder
    mm-grounding-dino moonshine muse_glimmer_assistant neomme oneformer paddleocr_vl patchtst pi0
    pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder pp_doclayout_v3
    pp_doclayout_v4 qwen2_5_omni_thinker qwen3_omni_moe_thinker radio rt_detr rt_detr_v2 sam sam3_tracker sam3_video
    sam_hq seggpt shieldgemma2 speecht5 step3p7 timesfm timesfm2_5 tvp videoprism vjepa2 voxtral_realtime xcodec""",
    "needs detectron2": """layoutlmv2""",
    "needs natten": """dinat""",
    "needs scipy": """inkling_mm_model""",
    "needs timm": """conditional_detr dab-detr deformable_detr edgetam fast_vlm gemma3n omdet-turbo pe_audio_video
    pe_video perception_lm table-transformer timm_wrapper""",
    "needs torchaudio": """higgs_audio_v2_tokenizer""",
    "stays too large": """align blt edgetam_video efficientloftr fastspeech2_conformer_with_hifigan janus muse_spark
    neucodec pe_audio sam2 sam2_video vibevoice vibevoice_asr vits xcodec2""",
    "varies from call to call": """vilt vit_mae""",
}
NOT_BUILT: dict[str, str] = {t: reason for reason, types in _REASONS.items() for t in types.split()}

# The attention of mra is a CUDA kernel; elsewhere it gives zeros.
_WITHOUT = """bit convnext convnextv2 dac dinov3_convnext efficientnet encodec falcon_mamba fnet focalnet hgnet_v2 mamba
    mamba2 mobilenet_v1 mobilenet_v2 mra patchtsmixer poolformer pp_lcnet pp_ocrv5_mobile_rec pp_ocrv5_server_rec
    pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec regnet resnet rwkv textnet univnet uvdoc
    vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder xlstm"""
NO_ATTENTION: tuple[str, ...] = tuple(_WITHOUT.split())
