"""Tiny transformers models, one per architecture that lowtide must train, built from configs without a download.

    model, make_batch = build("gpt2")
    loss = model(**make_batch(batch=2, length=16, seed=0)).loss

Models are in training mode with weights from a fixed seed. `length` is tokens for language models and is ignored by
models of images; t5, bart and marian have it on both sides, and wav2vec2 counts it in 40 samples.
"""

import torch
import transformers as hf
from zoo_sizes import BOUNDS, CLASSES, HEADS, HIDDEN, IMAGE, LAYERS, POSITIONS, VOCAB, two_sides
from zoo_speech import wav2vec2, whisper

# Settings under the names that most configs give them.
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
MLP = {"intermediate_size": 2 * HIDDEN}
LENGTH = {"max_position_embeddings": POSITIONS}


def _decoder(config_class, model_class, **settings):
    """A causal language model; labels are its own tokens, every eighth one ignored."""
    config = config_class(vocab_size=VOCAB, use_cache=False, pad_token_id=0, **settings)

    def make_batch(batch=2, length=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCAB, (batch, length), generator=generator)
        labels = ids.clone()
        labels[:, ::8] = -100
        return {"input_ids": ids, "labels": labels}

    return model_class(config), make_batch


def _encoder(config_class, model_class, **settings):
    """A masked language model; the end of every second row is padding."""
    config = config_class(vocab_size=VOCAB, pad_token_id=0, **settings)

    def make_batch(batch=2, length=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, VOCAB, (batch, length), generator=generator)
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[::2, length - length // 4 :] = 0
        labels = torch.where(mask.bool(), ids, torch.full_like(ids, -100))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return model_class(config), make_batch


def _classifier(config_class, model_class, dtype, **settings):
    """A classifier of images."""
    config = config_class(num_labels=CLASSES, **settings)

    def make_batch(batch=2, length=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randn(batch, 3, IMAGE, IMAGE, generator=generator).to(dtype)
        return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (batch,), generator=generator)}

    return model_class(config), make_batch


def _gpt2(p, dtype):
    return _decoder(
        hf.GPT2Config,
        hf.GPT2LMHeadModel,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=p,
        embd_pdrop=p,
        attn_pdrop=p,
    )


def _bloom(p, dtype):
    return _decoder(
        hf.BloomConfig,
        hf.BloomForCausalLM,
        hidden_size=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
        hidden_dropout=p,
        attention_dropout=p,
    )


def _bert_settings(p):
    return {
        **SIZES,
        **MLP,
        **LENGTH,
        "hidden_dropout_prob": p,
        "attention_probs_dropout_prob": p,
    }


def _bert(p, dtype):
    return _encoder(hf.BertConfig, hf.BertForMaskedLM, **_bert_settings(p))


def _roberta(p, dtype):
    return _encoder(hf.RobertaConfig, hf.RobertaForMaskedLM, **_bert_settings(p))


def _electra(p, dtype):
    return _encoder(hf.ElectraConfig, hf.ElectraForMaskedLM, embedding_size=HIDDEN // 2, **_bert_settings(p))


def _albert(p, dtype):
    return _encoder(
        hf.AlbertConfig,
        hf.AlbertForMaskedLM,
        embedding_size=HIDDEN // 2,
        classifier_dropout_prob=p,
        **_bert_settings(p),
    )


def _distilbert(p, dtype):
    return _encoder(
        hf.DistilBertConfig,
        hf.DistilBertForMaskedLM,
        dim=HIDDEN,
        hidden_dim=2 * HIDDEN,
        n_layers=LAYERS,
        n_heads=HEADS,
        max_position_embeddings=POSITIONS,
        dropout=p,
        attention_dropout=p,
    )


def _modernbert(p, dtype):
    return _encoder(
        hf.ModernBertConfig,
        hf.ModernBertForMaskedLM,
        **SIZES,
        **MLP,
        **LENGTH,
        local_attention=8,
        global_attn_every_n_layers=2,
        **BOUNDS,
        cls_token_id=1,
        sep_token_id=2,
        embedding_dropout=p,
        mlp_dropout=p,
        attention_dropout=p,
    )


def _llama_settings(p):
    return {
        **SIZES,
        **MLP,
        "num_key_value_heads": HEADS // 2,
        **LENGTH,
        **BOUNDS,
        "attention_dropout": p,
    }


def _llama(p, dtype):
    return _decoder(hf.LlamaConfig, hf.LlamaForCausalLM, **_llama_settings(p))


def _mistral(p, dtype):
    return _decoder(hf.MistralConfig, hf.MistralForCausalLM, sliding_window=8, **_llama_settings(p))


def _mixtral(p, dtype):
    # The default, grouped_mm, has no fp64 kernel.
    experts = {"experts_implementation": "batched_mm"} if dtype == torch.float64 else {}
    return _decoder(
        hf.MixtralConfig,
        hf.MixtralForCausalLM,
        num_local_experts=4,
        num_experts_per_tok=2,
        **_llama_settings(p),
        **experts,
    )


def _qwen2(p, dtype):
    return _decoder(hf.Qwen2Config, hf.Qwen2ForCausalLM, **_llama_settings(p))


def _gemma2(p, dtype):
    return _decoder(
        hf.Gemma2Config,
        hf.Gemma2ForCausalLM,
        head_dim=HIDDEN // HEADS,
        query_pre_attn_scalar=HIDDEN // HEADS,
        sliding_window=8,
        **_llama_settings(p),
    )


def _phi3(p, dtype):
    return _decoder(hf.Phi3Config, hf.Phi3ForCausalLM, resid_pdrop=p, embd_pdrop=p, **_llama_settings(p))


def _falcon(p, dtype):
    return _decoder(
        hf.FalconConfig,
        hf.FalconForCausalLM,
        **SIZES,
        **LENGTH,
        **BOUNDS,
        hidden_dropout=p,
        attention_dropout=p,
    )


def _mpt(p, dtype):
    return _decoder(
        hf.MptConfig,
        hf.MptForCausalLM,
        d_model=HIDDEN,
        n_layers=LAYERS,
        n_heads=HEADS,
        max_seq_len=POSITIONS,
        resid_pdrop=p,
        emb_pdrop=p,  # transformers 5.18 refuses any attn_pdrop but 0 in MptAttentionConfig: it wants an int
    )


def _gpt_neox(p, dtype):
    return _decoder(
        hf.GPTNeoXConfig,
        hf.GPTNeoXForCausalLM,
        **SIZES,
        **MLP,
        **LENGTH,
        **BOUNDS,
        hidden_dropout=p,
        attention_dropout=p,
    )


def _t5(p, dtype):
    return _decoder(
        hf.T5Config,
        hf.T5ForConditionalGeneration,
        d_model=HIDDEN,
        d_kv=HIDDEN // HEADS,
        d_ff=2 * HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
        eos_token_id=1,
        dropout_rate=p,
    )


def _translator(config_class, model_class, p, start):
    """With an encoder and a decoder, whose first token is `start`."""
    return _decoder(
        config_class,
        model_class,
        **two_sides(p),
        **LENGTH,
        **BOUNDS,
        decoder_start_token_id=start,
        forced_eos_token_id=2,
    )


def _bart(p, dtype):
    return _translator(hf.BartConfig, hf.BartForConditionalGeneration, p, start=2)


def _marian(p, dtype):
    return _translator(hf.MarianConfig, hf.MarianMTModel, p, start=0)


def _opt(p, dtype):
    return _decoder(
        hf.OPTConfig,
        hf.OPTForCausalLM,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=2 * HIDDEN,
        word_embed_proj_dim=HIDDEN,
        dropout=p,
        attention_dropout=p,
        **LENGTH,
        **BOUNDS,
    )


def _vit(p, dtype):
    return _classifier(
        hf.ViTConfig,
        hf.ViTForImageClassification,
        dtype,
        image_size=IMAGE,
        patch_size=8,
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
        **SIZES,
        **MLP,
    )


def _swin(p, dtype):
    return _classifier(
        hf.SwinConfig,
        hf.SwinForImageClassification,
        dtype,
        image_size=IMAGE,
        patch_size=2,
        embed_dim=HIDDEN // 4,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
        drop_path_rate=p,
    )


def _convnext(p, dtype):
    return _classifier(
        hf.ConvNextConfig,
        hf.ConvNextForImageClassification,
        dtype,
        image_size=IMAGE,
        patch_size=4,
        num_stages=2,
        hidden_sizes=[HIDDEN // 2, HIDDEN],
        depths=[2, 2],
        drop_path_rate=p,
    )


def _resnet(p, dtype):
    return _classifier(
        hf.ResNetConfig,
        hf.ResNetForImageClassification,
        dtype,
        embedding_size=16,
        hidden_sizes=[HIDDEN // 2, HIDDEN],
        depths=[2, 2],
    )


def _segformer(p, dtype):
    return _classifier(
        hf.SegformerConfig,
        hf.SegformerForImageClassification,
        dtype,
        num_encoder_blocks=2,
        depths=[2, 2],
        sr_ratios=[2, 1],
        hidden_sizes=[HIDDEN // 2, HIDDEN],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        decoder_hidden_size=HIDDEN,
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
        classifier_dropout_prob=p,
        drop_path_rate=p,
    )


def _clip(p, dtype):
    tower = {
        **SIZES,
        **MLP,
        "attention_dropout": p,
        "projection_dim": HIDDEN // 2,
    }
    text = {
        **tower,
        "vocab_size": VOCAB,
        **LENGTH,
        "pad_token_id": 0,
        **BOUNDS,
    }
    config = hf.CLIPConfig(
        text_config=text,
        vision_config={**tower, "image_size": IMAGE, "patch_size": 8},
        projection_dim=HIDDEN // 2,
        logit_scale_init_value=1.0,  # the usual 2.66 makes the first SGD steps jump
    )

    def make_batch(batch=2, length=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return {
            "input_ids": torch.randint(3, VOCAB, (batch, length), generator=generator),
            "pixel_values": torch.randn(batch, 3, IMAGE, IMAGE, generator=generator).to(dtype),
            "return_loss": True,
        }

    return hf.CLIPModel(config), make_batch


BUILDERS = {
    "gpt2": _gpt2,
    "bloom": _bloom,
    "bert": _bert,
    "roberta": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
    "electra": _electra,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "gemma2": _gemma2,
    "phi3": _phi3,
    "falcon": _falcon,
    "mpt": _mpt,
    "gpt_neox": _gpt_neox,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "opt": _opt,
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "vit": _vit,
    "swin": _swin,
    "convnext": _convnext,
    "resnet": _resnet,
    "segformer": _segformer,
    "clip": _clip,
    "modernbert": _modernbert,
}
NAMES = tuple(BUILDERS)

# Of fp64 models these compute a part in fp32 themselves: causal losses cast logits, RMS norms rows.
IN_FP32 = ("gpt2", "bloom", "llama", "mistral", "mixtral", "qwen2", "gemma2", "phi3", "falcon", "mpt", "gpt_neox", "t5")
IN_FP32 += ("modernbert", "opt")


def build(name, dropout=0.0, dtype=torch.float32):
    """The model `name` in training mode and a function (batch, length, seed) -> keyword arguments that yield a loss."""
    random_state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        model, make_batch = BUILDERS[name](dropout, dtype)
    finally:
        torch.set_rng_state(random_state)
    return model.to(dtype).train(), make_batch
