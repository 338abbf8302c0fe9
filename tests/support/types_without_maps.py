"""What tests share: types without maps."""

from __future__ import annotations

_REFUSED = """
aya_vision bailing_hybrid bamba canary canine cohere2_vision cohere_asr convbert cosmos3_edge cosmos3_omni cvt
deepseek_v4 deepseek_vl donut-swin exaone4_5 falcon_h1 florence2 funnel gemma3 gemma4 git glm46v glm4v
glm4v_moe glm5_next glm_ocr glmga glpn got_ocr2 granite_swa granitemoe_swa granitemoehybrid groupvit hiera
hunyuan_vl hyperclovax_vision_v2 idefics2 idefics3 inkling_text internvl jamba kimi_linear lasr_ctc led levit
lfm2_moe lfm2_vl lighton_ocr llava longformer longt5 mask2former maskformer maskformer-swin minicpm_ocr
minicpmv4_6 minicpmv4_7 minimax mistral3 mistral_large4 mobilevit mobilevitv2 modernvbert nemo_speechlm
nemotron_h nystromformer olmo_hybrid parakeet_ctc pegasus_x perceiver prophetnet pvt pvt_v2 qianfan_ocr
qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen3_vl qwen3_vl_moe
sam3_lite_text segformer smolvlm swiftformer swin swin2sr swinv2 t5gemma2 timesformer ultravbert wav2vec2-bert
wav2vec2-conformer xclip zamba zamba2 zaya
"""


REFUSED = set(_REFUSED.split())
"""Model types whose attention maps cannot be followed from layer to layer: gae refuses them, and says why."""
