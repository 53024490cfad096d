"""The models of sound in tests/zoo.py, as its builders are: (dropout, dtype) -> (model, make_batch)."""

import torch
import transformers as hf
from zoo_sizes import BOUNDS, CLASSES, HEADS, HIDDEN, LAYERS, MELS, POSITIONS, VOCAB, two_sides


def whisper(p, dtype):
    config = hf.WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=MELS,
        max_source_positions=POSITIONS // 2,
        max_target_positions=POSITIONS,
        use_cache=False,
        pad_token_id=0,
        decoder_start_token_id=1,
        **BOUNDS,
        **two_sides(p),
    )

    def make_batch(batch=2, length=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return {
            "input_features": torch.randn(batch, MELS, POSITIONS, generator=generator).to(dtype),
            "labels": torch.randint(3, VOCAB, (batch, length), generator=generator),
        }

    return hf.WhisperForConditionalGeneration(config), make_batch


def wav2vec2(p, dtype):
    config = hf.Wav2Vec2Config(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * HIDDEN,
        conv_dim=(HIDDEN // 2, HIDDEN // 2),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=HIDDEN // 2,
        num_labels=CLASSES,
        layerdrop=0.0,
        mask_time_prob=0.0,  # else NumPy draws which frames are masked
        feat_proj_dropout=p,
        hidden_dropout=p,
        attention_dropout=p,
        activation_dropout=p,
        final_dropout=p,
    )

    def make_batch(batch=2, length=16, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return {
            "input_values": torch.randn(batch, 40 * length, generator=generator).to(dtype),
            "labels": torch.randint(0, CLASSES, (batch,), generator=generator),
        }

    return hf.Wav2Vec2ForSequenceClassification(config), make_batch
