"""The large models of this benchmark, and the small ones that can be measured too."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def llama70() -> nn.Module:
    config = LlamaConfig(
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
        vocab_size=128256,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config)


def gpt175() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_embd=12288, n_layer=96, n_head=96, n_positions=2048))


def llama405() -> nn.Module:
    config = LlamaConfig(
        hidden_size=16384,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        intermediate_size=53248,
        vocab_size=128256,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config)


def small_gpt() -> tuple[nn.Module, torch.Tensor, None]:
    from tests.models import GPT

    return GPT(vocabulary=512, width=256, blocks=6, context=128, tied=False), torch.randint(512, (8, 128)), None


def small_cnn() -> tuple[nn.Module, torch.Tensor, None]:
    from tests.models import CNN

    return CNN(channels=32, blocks=6), torch.randn(16, 3, 32, 32), None
