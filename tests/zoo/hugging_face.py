"""Architectures of the transformers library, tiny, built from their configurations, without weights."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case

VOCABULARY, TOKENS, PIXELS = 60, 12, 32

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1} | SIZES
TEXT |= {"eos_token_id": 2}
# The names under which configurations keep a probability of dropping something that is not called dropout.
DROPS = ("dropout", "pdrop", "layerdrop", "drop_path", "drop_rate", "stochastic_depth")


def build(model: str, config: str, options: dict[str, Any]) -> nn.Module:
    """Return a model of class ``model`` whose configuration drops nothing and keeps no cache."""
    made = getattr(transformers, config)(**options)
    for part in (made, *(value for value in vars(made).values() if isinstance(value, transformers.PreTrainedConfig))):
        for name, value in vars(part).items():
            if any(word in name for word in DROPS) and isinstance(value, (int, float, list, tuple)):
                setattr(part, name, [0.0] * len(value) if isinstance(value, (list, tuple)) else type(value)(0))
        if getattr(part, "use_cache", False):
            part.use_cache = False
    return getattr(transformers, model)(made)


def tokens(batch: int, length: int = TOKENS) -> Tensor:
    """Return token numbers, none of which means anything special: (batch, length)."""
    return torch.randint(4, VOCABULARY - 4, (batch, length))


def causal(batch: int) -> Arguments:
    ids = tokens(batch)
    return (), {"input_ids": ids, "labels": ids}


def masked(batch: int) -> Arguments:
    return (), {"input_ids": tokens(batch), "attention_mask": _padding(batch), "labels": tokens(batch)}


def labelled(batch: int) -> Arguments:
    return (), {"input_ids": tokens(batch), "labels": torch.randint(0, 2, (batch,))}


def translated(batch: int) -> Arguments:
    return (), {"input_ids": tokens(batch), "labels": tokens(batch, 7)}


def pictured(batch: int) -> Arguments:
    return (), {"pixel_values": torch.randn(batch, 3, PIXELS, PIXELS), "labels": torch.randint(0, 2, (batch,))}


def coloured(batch: int) -> Arguments:
    return (), {"pixel_values": torch.randn(batch, 3, PIXELS, PIXELS), "labels": torch.randint(0, 2, (batch, 32, 32))}


def shown(batch: int) -> Arguments:
    return (), {"pixel_values": torch.randn(batch, 3, PIXELS, PIXELS)}


def plain(batch: int) -> Arguments:
    return (), {"input_ids": tokens(batch)}


def heard(batch: int) -> Arguments:
    return (), {"input_values": torch.randn(batch, 800), "labels": torch.randint(0, 2, (batch,))}


def spoken(batch: int) -> Arguments:
    return (), {"input_features": torch.randn(batch, 8, 40), "labels": tokens(batch, 6)}


def captioned(batch: int) -> Arguments:
    return (), {"input_ids": tokens(batch), "pixel_values": torch.randn(batch, 3, PIXELS, PIXELS)}


def _padding(batch: int) -> Tensor:
    mask = torch.ones(batch, TOKENS, dtype=torch.long)
    mask[0, 9:] = 0
    return mask


def _case(
    name: str, family: str, draw: Callable[[int], Arguments], model: str, config: str, options: dict[str, Any]
) -> Case:
    return Case(
        name=name,
        family=family,
        build=lambda: build(model, config, options),
        draw=draw,
        returns_loss="labels" in draw(1)[1],
    )


def _decoder(name: str, stem: str, *, family: str = "decoder", head: str = "ForCausalLM", **options: Any) -> Case:
    return _case(name, family, causal, stem + head, f"{stem}Config", options)


def _llama_like(name: str, stem: str, **options: Any) -> Case:
    return _decoder(name, stem, **(TEXT | {"num_key_value_heads": 2} | options))


def _experts(name: str, stem: str, **options: Any) -> Case:
    return _llama_like(name, stem, family="mixture of experts", **options)


def _encoder(
    name: str, stem: str, draw: Callable[[int], Arguments] = masked, head: str = "ForMaskedLM", **options: Any
) -> Case:
    return _case(name, "encoder", draw, stem + head, f"{stem}Config", TEXT | options)


def _translator(name: str, stem: str, **options: Any) -> Case:
    sizes = {
        "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "pad_token_id": 0,
        "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        "forced_eos_token_id": 2,
    }  # fmt: skip
    return _case(
        name, "encoder-decoder", translated, f"{stem}ForConditionalGeneration", f"{stem}Config", sizes | options
    )


def _vision(
    name: str, stem: str, draw: Callable[[int], Arguments] = pictured, head: str = "ForImageClassification", **opts: Any
) -> Case:
    return _case(name, "vision", draw, stem + head, f"{stem}Config", opts)


def _audio(name: str, stem: str, **options: Any) -> Case:
    convolutions = {
        "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
        "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
    }  # fmt: skip
    model = f"{stem}ForSequenceClassification"
    return _case(name, "audio", heard, model, f"{stem}Config", SIZES | convolutions | options)


_VIT = SIZES | {"image_size": PIXELS, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
_FUNNEL = {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1}
_GPT2 |= {"eos_token_id": 2}
_TOWERS = {"text_config": TEXT | {"projection_dim": 16}, "vision_config": _VIT | {"projection_dim": 16}}
_XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": VOCABULARY, "pad_index": 0}
_SWIN = {"image_size": PIXELS, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
_SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
    "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16,
}  # fmt: skip
_WHISPER = {
    "vocab_size": VOCABULARY, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_MPT = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": VOCABULARY, "expansion_ratio": 2}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "pad_token_id": 0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

CASES: tuple[Case, ...] = (
    _llama_like("llama", "Llama"),
    _llama_like("mistral", "Mistral", sliding_window=8),
    _llama_like("qwen2", "Qwen2"),
    _llama_like("qwen3", "Qwen3", head_dim=8),
    _llama_like("gemma", "Gemma", head_dim=8),
    _llama_like("gemma2", "Gemma2", head_dim=8, sliding_window=8),
    _case(
        "gemma3",
        "decoder",
        causal,
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        TEXT | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    ),
    _llama_like("phi", "Phi"),
    _llama_like("phi3", "Phi3"),
    _llama_like("stablelm", "StableLm"),
    _llama_like("olmo", "Olmo"),
    _llama_like("olmo2", "Olmo2"),
    _llama_like("cohere", "Cohere"),
    _llama_like("granite", "Granite"),
    _llama_like("glm", "Glm", head_dim=8),
    _llama_like("starcoder2", "Starcoder2"),
    _llama_like("persimmon", "Persimmon"),
    _llama_like("nemotron", "Nemotron"),
    _llama_like("smollm3", "SmolLM3"),
    _decoder("gpt2", "GPT2", head="LMHeadModel", **_GPT2),
    _decoder("gpt_bigcode", "GPTBigCode", **_GPT2),
    _decoder(
        "gpt_neo",
        "GPTNeo",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=48,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        max_position_embeddings=32,
    ),
    _decoder("gpt_neox", "GPTNeoX", **TEXT),
    _decoder("gptj", "GPTJ", rotary_dim=4, **_GPT2),
    _decoder("codegen", "CodeGen", rotary_dim=4, **_GPT2),
    _decoder("opt", "OPT", ffn_dim=48, word_embed_proj_dim=32, **TEXT),
    _decoder("bloom", "Bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    _decoder("falcon", "Falcon", alibi=False, new_decoder_architecture=False, **TEXT),
    _decoder("mpt", "Mpt", **_MPT),
    _decoder("xglm", "XGLM", vocab_size=VOCABULARY, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    _decoder("mamba", "Mamba", **_MAMBA),
    _decoder("mamba2", "Mamba2", num_heads=8, head_dim=8, n_groups=2, chunk_size=4, **_MAMBA),
    _decoder(
        "recurrent_gemma",
        "RecurrentGemma",
        lru_width=32,
        attention_window_size=8,
        num_key_value_heads=1,
        block_types=["recurrent", "attention"],
        **TEXT,
    ),
    _experts("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
    _experts("qwen2_moe", "Qwen2Moe", shared_expert_intermediate_size=24, **_EXPERTS),
    _experts("qwen3_moe", "Qwen3Moe", head_dim=8, **_EXPERTS),
    _experts("olmoe", "Olmoe", **_EXPERTS),
    _experts("granite_moe", "GraniteMoe", num_local_experts=4, num_experts_per_tok=2),
    _experts("phimoe", "Phimoe", num_local_experts=4, num_experts_per_tok=2),
    _encoder("bert", "Bert"),
    _encoder("roberta", "Roberta"),
    _encoder("albert", "Albert", embedding_size=16),
    _encoder("electra", "Electra", labelled, "ForSequenceClassification", embedding_size=16),
    _encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("deberta_v2", "DebertaV2", relative_attention=True, position_buckets=8, pos_att_type=["c2p", "p2c"]),
    _encoder("distilbert", "DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    _encoder("mobilebert", "MobileBert", embedding_size=16, intra_bottleneck_size=16),
    _encoder("mpnet", "MPNet"),
    _encoder("convbert", "ConvBert", embedding_size=16, conv_kernel_size=3),
    _encoder("roformer", "RoFormer"),
    _encoder("modernbert", "ModernBert", local_attention=8, cls_token_id=1, sep_token_id=2),
    _encoder("fnet", "FNet", causal, tpu_short_seq_length=TOKENS),
    _encoder("squeezebert", "SqueezeBert", embedding_size=32),
    _encoder("esm", "Esm", position_embedding_type="rotary", mask_token_id=3, token_dropout=False),
    _case("funnel", "encoder", masked, "FunnelForMaskedLM", "FunnelConfig", _FUNNEL),
    _case("xlm", "encoder", causal, "XLMWithLMHeadModel", "XLMConfig", _XLM),
    _case("t5", "encoder-decoder", translated, "T5ForConditionalGeneration", "T5Config", _T5),
    _case("mt5", "encoder-decoder", translated, "MT5ForConditionalGeneration", "MT5Config", _T5),
    _translator("bart", "Bart"),
    _case(
        "marian",
        "encoder-decoder",
        translated,
        "MarianMTModel",
        "MarianConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "pad_token_id": 0,
            "max_position_embeddings": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    _translator("pegasus", "Pegasus"),
    _translator("mbart", "MBart"),
    _translator("m2m_100", "M2M100"),
    _translator("blenderbot", "Blenderbot"),
    _translator(
        "led", "LED", attention_window=4, max_encoder_position_embeddings=32, max_decoder_position_embeddings=32
    ),
    _vision("vit", "ViT", **_VIT),
    _vision("deit", "DeiT", **_VIT),
    _vision("beit", "Beit", use_relative_position_bias=True, **_VIT),
    _vision("swin", "Swin", **_SWIN),
    _vision("swinv2", "Swinv2", **_SWIN),
    _vision("convnext", "ConvNext", num_stages=2, **_STAGES),
    _vision("convnextv2", "ConvNextV2", num_stages=2, **_STAGES),
    _vision("resnet", "ResNet", embedding_size=8, layer_type="basic", **_STAGES),
    _vision("regnet", "RegNet", embedding_size=8, groups_width=4, **_STAGES),
    _vision("segformer", "Segformer", coloured, "ForSemanticSegmentation", num_labels=2, **_SEGFORMER),
    _vision(
        "dinov2",
        "Dinov2",
        shown,
        "Model",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        image_size=PIXELS,
        patch_size=8,
    ),
    _vision(
        "poolformer",
        "PoolFormer",
        num_encoder_blocks=2,
        depths=[1, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
    ),
    _vision("mobilevit", "MobileViT", image_size=PIXELS, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8] * 7),
    _vision("cvt", "Cvt", embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    _vision(
        "pvt_v2",
        "PvtV2",
        image_size=PIXELS,
        hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 1, 2, 2],
        depths=[1, 1, 1, 1],
        mlp_ratios=[2, 2, 2, 2],
    ),
    _vision(
        "efficientnet", "EfficientNet", width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320, image_size=PIXELS
    ),
    _audio("wav2vec2", "Wav2Vec2"),
    _audio("hubert", "Hubert"),
    _audio("wavlm", "WavLM"),
    _audio("sew", "SEW", squeeze_factor=2),
    _case("whisper", "audio", spoken, "WhisperForConditionalGeneration", "WhisperConfig", _WHISPER),
    _case(
        "speech_to_text",
        "audio",
        lambda batch: ((), {"input_features": torch.randn(batch, 40, 8), "labels": tokens(batch, 6)}),
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        {name: value for name, value in _WHISPER.items() if "suppress" not in name and "mel" not in name}
        | {"input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 64},
    ),
    _case("clip", "multimodal", captioned, "CLIPModel", "CLIPConfig", _TOWERS | {"projection_dim": 16}),
    _case("siglip", "multimodal", captioned, "SiglipModel", "SiglipConfig", _TOWERS),
    _case(
        "blip", "multimodal", captioned, "BlipForConditionalGeneration", "BlipConfig", _TOWERS | {"projection_dim": 16}
    ),
    _case(
        "vilt",
        "multimodal",
        lambda batch: ((), {"input_ids": tokens(batch), "pixel_values": torch.randn(batch, 3, PIXELS, PIXELS)}),
        "ViltModel",
        "ViltConfig",
        TEXT | _VIT,
    ),
    _case(
        "llava",
        "multimodal",
        lambda batch: (
            (),
            {
                "input_ids": torch.cat((torch.full((batch, 16), VOCABULARY - 1), tokens(batch)), 1),
                "pixel_values": torch.randn(batch, 3, PIXELS, PIXELS),
            },
        ),
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "image_token_index": VOCABULARY - 1,
            "image_token_id": VOCABULARY - 1,
            "vision_config": _VIT | {"model_type": "clip_vision_model"},
        },
    ),
    _case(
        "groupvit",
        "multimodal",
        captioned,
        "GroupViTModel",
        "GroupViTConfig",
        {
            "text_config": TEXT,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "depths": [1, 1],
                "num_hidden_layers": 2,
                "num_group_tokens": [4, 0],
                "num_output_groups": [4, 2],
                "image_size": PIXELS,
                "patch_size": 8,
                "num_attention_heads": 4,
            },
            "projection_dim": 16,
            "projection_intermediate_dim": 32,
        },
    ),
)
