"""Byte-level language models, from transformers' configs: small enough to learn something within a minute."""

import transformers as hf
from data import VOCABULARY

WIDTH = 256
LAYERS = 4
HEADS = 8


def _gpt2(length):
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=length,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def _bloom(length):
    return hf.BloomForCausalLM(
        hf.BloomConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def _llama(length):
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            max_position_embeddings=length,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


MODELS = {"gpt2": _gpt2, "bloom": _bloom, "llama": _llama}
