"""The models of `./dev bench training`, built from configs with random weights: six, and others when asked for by
name.

    model, make_batch = build("gpt2")
    loss = model(**make_batch()).loss

Dropout is 0.1 where the architecture has it (vit: on hidden states only, so that PyTorch keeps its fused attention),
every token is labelled (of masked_bert 15 %, of padded_bert the half that is no padding), and batches have the size
that `make_batch()` has by default.
"""

import torch
import transformers as hf

DROPOUT = 0.1


def _tokens(vocab, batch, length, padded=False):
    default_batch, default_length = batch, length

    def make_batch(batch=default_batch, length=default_length):
        ids = torch.randint(0, vocab, (batch, length))
        inputs = {"input_ids": ids, "labels": ids.clone()}
        if padded:  # the last eighth of every second row
            inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
            inputs["attention_mask"][::2, length - length // 8 :] = 0
        return inputs

    return make_batch


def _images(batch=8):
    return {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 1000, (batch,))}


def _bloom3():
    config = hf.BloomConfig(
        vocab_size=30522,
        hidden_size=768,
        n_layer=3,
        n_head=12,
        use_cache=False,
        hidden_dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    return hf.BloomForCausalLM(config), _tokens(30522, 2, 512)


def _gpt2():
    config = hf.GPT2Config(
        vocab_size=50257,
        n_embd=768,
        n_layer=6,
        n_head=12,
        use_cache=False,
        resid_pdrop=DROPOUT,
        embd_pdrop=DROPOUT,
        attn_pdrop=DROPOUT,
    )
    return hf.GPT2LMHeadModel(config), _tokens(50257, 2, 512)


def _bert():
    config = hf.BertConfig(
        vocab_size=30522,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    return hf.BertForMaskedLM(config), _tokens(30522, 8, 128, padded=True)


def _masked_bert():
    """bert as it is trained: labels where a token was masked."""
    model, full = _bert()

    def make_batch(**sizes):
        batch = full(**sizes)
        batch["labels"][torch.rand(batch["labels"].shape) > 0.15] = -100
        return batch

    return model, make_batch


def _padded_bert():
    """Sequences of an eighth to seven eighths of the batch's length."""
    model, full = _bert()

    def make_batch(**sizes):
        batch = full(**sizes)
        rows, length = batch["labels"].shape
        ends = torch.linspace(length / 8, length - length / 8, rows).long()
        batch["attention_mask"] = (torch.arange(length) < ends[:, None]).long()
        batch["labels"][batch["attention_mask"] == 0] = -100
        return batch

    return model, make_batch


def _llama():
    config = hf.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1376,
        use_cache=False,
    )
    return hf.LlamaForCausalLM(config), _tokens(32000, 2, 512)


def _vit():
    config = hf.ViTConfig(
        hidden_size=384,
        num_attention_heads=6,
        num_hidden_layers=12,
        intermediate_size=1536,
        num_labels=1000,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0,
    )
    return hf.ViTForImageClassification(config), _images


def _resnet50():
    return hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)), _images


def _bart():
    config = hf.BartConfig(
        vocab_size=50265,
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    return hf.BartForConditionalGeneration(config), _tokens(50265, 2, 256)


def _whisper():
    config = hf.WhisperConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        use_cache=False,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )

    def make_batch(batch=1, length=128):
        labels = torch.randint(0, config.vocab_size, (batch, length))
        return {"input_features": torch.randn(batch, config.num_mel_bins, 3000), "labels": labels}

    return hf.WhisperForConditionalGeneration(config), make_batch


def _deberta_v2():
    config = hf.DebertaV2Config(
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    return hf.DebertaV2ForMaskedLM(config), _tokens(30522, 2, 256, padded=True)


def _mamba():
    config = hf.MambaConfig(vocab_size=50280, hidden_size=768, num_hidden_layers=6, use_cache=False)
    return hf.MambaForCausalLM(config), _tokens(50280, 2, 128)


BUILDERS = {
    "bloom3": _bloom3,
    "gpt2": _gpt2,
    "bert": _bert,
    "llama": _llama,
    "vit": _vit,
    "resnet50": _resnet50,
}
NAMES = tuple(BUILDERS)


def _swin():
    """Attention with a bias that trains, windows that are rolled."""
    return hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000)), lambda batch=4: _images(batch)


def _convnext():
    """Norms of channels, convolutions of one channel each."""
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000)), lambda batch=4: _images(batch)


def _segformer():
    """A loss over the pixels of logits that are made as large as the image."""

    def make_batch(batch=2):
        return {"pixel_values": torch.randn(batch, 3, 256, 256), "labels": torch.randint(0, 20, (batch, 256, 256))}

    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig(num_labels=20)), make_batch


def _mobilenet_v2():
    """Padded images, activations with a ceiling."""
    return hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=1000)), lambda batch=4: _images(batch)


def _wav2vec2():
    """Group normalisation of waves."""
    config = hf.Wav2Vec2Config(num_hidden_layers=3, num_labels=10, apply_spec_augment=False, layerdrop=0.0)

    def make_batch(batch=2, length=16000):
        return {"input_values": torch.randn(batch, length), "labels": torch.randint(0, 10, (batch,))}

    return hf.Wav2Vec2ForSequenceClassification(config), make_batch


# Models that torch.export had refused, or that torch.compile breaks, two with few labels, and five whose operators the
# six have not; on request only.
FURTHER = {
    "bart": _bart,
    "whisper": _whisper,
    "deberta_v2": _deberta_v2,
    "mamba": _mamba,
    "swin": _swin,
    "convnext": _convnext,
    "segformer": _segformer,
    "mobilenet_v2": _mobilenet_v2,
    "wav2vec2": _wav2vec2,
    "masked_bert": _masked_bert,
    "padded_bert": _padded_bert,
}


def build(name):
    """The model `name` in training mode, and make_batch() -> keyword arguments that yield a loss."""
    torch.manual_seed(0)
    model, make_batch = {**BUILDERS, **FURTHER}[name]()
    return model.train(), make_batch
