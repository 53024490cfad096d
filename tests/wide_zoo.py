"""Further architectures of transformers than tests/zoo.py has, tiny and without a download, as a table.

    model, make_batch = build("mamba")
    loss = model(**make_batch(batch=2, length=16, seed=0)).loss

Everything is in float64; dropout is 0. What most configs have in common stands in SETTINGS; a row of TABLE is the class
of a config, that of a model, the kind of batch and what the architecture needs besides.
"""

import contextlib
import dataclasses

import torch
import transformers as hf

HIDDEN = 32
VOCAB = 99
IMAGE = 32
CLASSES = 5
IMAGE_TOKEN = VOCAB

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "emb_dim")
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim")
SETTINGS = {
    **dict.fromkeys(_WIDTHS, HIDDEN),
    **dict.fromkeys(_INNER, 2 * HIDDEN),
    **dict.fromkeys(_LAYERS, 2),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "context_length"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "query_pre_attn_scalar", "state_size", "mamba_d_state", "chunk_size"), 8),
    **{"num_key_value_heads": 2, "embedding_size": 16, "sliding_window": 8, "rotary_dim": 4},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": HIDDEN},
    **{"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False},
    **{"image_size": IMAGE, "patch_size": 8, "drop_path_rate": 0.0},
}


def _config(name, settings):
    """Of the class `name`: SETTINGS as far as it has them, no dropout, and its own settings; None leaves a default."""
    config_class = getattr(hf, f"{name}Config")
    fields = {field.name: field.default for field in dataclasses.fields(config_class)}
    found = {field: 0.0 for field, default in fields.items() if "drop" in field and isinstance(default, float)}
    found |= {field: value for field, value in SETTINGS.items() if field in fields} | settings
    return config_class(**{field: value for field, value in found.items() if value is not None})


# ---- batches: a function of (batch, length, generator)


def _tokens(batch, length, generator):
    return torch.randint(3, VOCAB, (batch, length), generator=generator)


def _classes(generator, *shape, count=CLASSES):
    return torch.randint(0, count, shape, generator=generator)


def _pixels(batch, generator, size=IMAGE):
    return torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64)


def causal(batch, length, generator):
    """Labels are the tokens, every fifth one ignored."""
    tokens = _tokens(batch, length, generator)
    labels = tokens.clone()
    labels[:, ::5] = -100
    return {"input_ids": tokens, "labels": labels}


def padded(batch, length, generator):
    """The end of every second row is padding."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[::2, length - length // 4 :] = 0
    return {**causal(batch, length, generator), "attention_mask": mask}


def answers(batch, length, generator):
    given = padded(batch, length, generator)
    del given["labels"]
    ends = {name: _classes(generator, batch, count=length) for name in ("start_positions", "end_positions")}
    return {**given, **ends}


def pairs(batch, length, generator):
    return {**padded(batch, length, generator), "labels": _tokens(batch, length // 2 + 1, generator)}


def whole_pairs(batch, length, generator):
    """Without padding, of which PyTorch's own rows that see nothing else are NaN in fp64."""
    given = pairs(batch, length, generator)
    del given["attention_mask"]
    return given


def choices(batch, length, generator):
    tokens = torch.stack([_tokens(batch, length, generator), _tokens(batch, length, generator)], 1)
    return {"input_ids": tokens, "labels": _classes(generator, batch, count=2)}


def images(batch, length, generator, size=IMAGE):
    return {"pixel_values": _pixels(batch, generator, size), "labels": _classes(generator, batch)}


def label_maps(batch, length, generator):
    return {"pixel_values": _pixels(batch, generator), "labels": _classes(generator, batch, IMAGE, IMAGE)}


def questions(batch, length, generator):
    """Answered by a weight for each label."""
    weights = torch.rand(batch, CLASSES, generator=generator, dtype=torch.float64)
    return {
        "input_ids": _tokens(batch, length, generator),
        "pixel_values": _pixels(batch, generator),
        "labels": weights,
    }


def captions(batch, length, generator):
    return {
        "input_ids": _tokens(batch, length, generator),
        "pixel_values": _pixels(batch, generator),
        "return_loss": True,
    }


def seen(batch, length, generator):
    """A token for each patch of an image stands before the words."""
    tokens = torch.cat([torch.full((batch, (IMAGE // 8) ** 2), IMAGE_TOKEN), _tokens(batch, length, generator)], 1)
    labels = tokens.masked_fill(tokens == IMAGE_TOKEN, -100)
    return {"input_ids": tokens, "pixel_values": _pixels(batch, generator), "labels": labels}


def hidden_patches(batch, length, generator):
    hidden = torch.rand(batch, (IMAGE // 8) ** 2, generator=generator) > 0.5
    return {"pixel_values": _pixels(batch, generator), "bool_masked_pos": hidden}


def spectrograms(batch, length, generator):
    sound = torch.randn(batch, 32, 16, generator=generator, dtype=torch.float64)
    return {"input_values": sound, "labels": _classes(generator, batch, count=2)}


def transcripts(batch, length, generator):
    sound = torch.randn(batch, 16 * length, generator=generator, dtype=torch.float64)
    return {"input_values": sound, "labels": torch.randint(1, VOCAB, (batch, 4), generator=generator)}


def sounds(batch, length, generator):
    sound = torch.randn(batch, 16 * length, generator=generator, dtype=torch.float64)
    return {"input_values": sound, "labels": _classes(generator, batch, count=2)}


def series(batch, length, generator):
    past, future = (torch.randn(batch, n, 3, generator=generator, dtype=torch.float64) for n in (16, 4))
    return {"past_values": past, "future_values": future}


# ---- the architectures

_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
_PATCHES = {"context_length": 16, "prediction_length": 4, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3}
_SMALL_IMAGES = {"num_labels": CLASSES}
_PART = {  # of a config that has two
    "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout"), 0.0),
}  # fmt: skip
_FEATURES = {
    "conv_dim": (16, 16, 16), "conv_kernel": (4, 3, 3), "conv_stride": (4, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_DECODED = {  # settings of which an encoder and a decoder have their own
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2), "decoder_start_token_id": 2,
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * HIDDEN),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
}  # fmt: skip
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}

TABLE = {
    # Causal language models.
    "mamba": ("Mamba", "MambaForCausalLM", causal, {}),
    "mamba2": ("Mamba2", "Mamba2ForCausalLM", causal, {"num_heads": 8, "n_groups": 2}),
    "rwkv": ("Rwkv", "RwkvForCausalLM", causal, {"attention_hidden_size": HIDDEN}),
    "jamba": ("Jamba", "JambaForCausalLM", causal, {
        "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False,
        "experts_implementation": "batched_mm",
    }),
    "gptj": ("GPTJ", "GPTJForCausalLM", causal, {}),
    "codegen": ("CodeGen", "CodeGenForCausalLM", causal, {}),
    "qwen3": ("Qwen3", "Qwen3ForCausalLM", causal, {}),
    "gemma3": ("Gemma3Text", "Gemma3ForCausalLM", causal, {}),
    "olmo2": ("Olmo2", "Olmo2ForCausalLM", causal, {}),
    "cohere": ("Cohere", "CohereForCausalLM", causal, {}),
    "phi": ("Phi", "PhiForCausalLM", causal, {}),
    "stablelm": ("StableLm", "StableLmForCausalLM", causal, {}),
    "starcoder2": ("Starcoder2", "Starcoder2ForCausalLM", causal, {}),
    # Its rotary embedding is a product of complex numbers.
    "llama4": ("Llama4Text", "Llama4ForCausalLM", causal, {
        "intermediate_size_mlp": 2 * HIDDEN, "num_local_experts": 4, "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8,
    }),
    # Its experts are found by an unsorted topk.
    "deepseek_v3": ("DeepseekV3", "DeepseekV3ForCausalLM", causal, {
        "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16,
        **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8), "qk_rope_head_dim": 4,
        "num_key_value_heads": 4, "num_experts": None, "head_dim": None, "experts_implementation": "batched_mm",
    }),
    "xglm": ("XGLM", "XGLMForCausalLM", padded, {"attention_heads": 4}),
    "biogpt": ("BioGpt", "BioGptForCausalLM", padded, {}),
    # Encoders.
    "bert_qa": ("Bert", "BertForQuestionAnswering", answers, {}),
    "deberta": ("Deberta", "DebertaForMaskedLM", padded, _DISENTANGLED),
    "deberta_v2": ("DebertaV2", "DebertaV2ForMaskedLM", padded, {
        **_DISENTANGLED, "position_buckets": 8, "conv_kernel_size": 3,
    }),
    "mpnet": ("MPNet", "MPNetForMaskedLM", padded, {}),
    "squeezebert": ("SqueezeBert", "SqueezeBertForMaskedLM", padded, {"embedding_size": HIDDEN}),
    "fnet": ("FNet", "FNetForMaskedLM", causal, {}),  # fft2
    "layoutlm": ("LayoutLM", "LayoutLMForMaskedLM", padded, {}),
    "nystromformer": ("Nystromformer", "NystromformerForMaskedLM", padded, {}),
    "yoso": ("Yoso", "YosoForMaskedLM", padded, {}),
    "xlm": ("XLM", "XLMWithLMHeadModel", padded, {}),  # asserts how long its rows are
    "xlnet": ("XLNet", "XLNetLMHeadModel", causal, {"d_inner": 2 * HIDDEN}),
    "longformer": ("Longformer", "LongformerForMaskedLM", causal, {"attention_window": [8, 8]}),
    "funnel": ("Funnel", "FunnelForMaskedLM", padded, {"block_sizes": [1, 1], "d_head": 8, "d_inner": 2 * HIDDEN}),
    # Encoders with decoders.
    "mt5": ("MT5", "MT5ForConditionalGeneration", pairs, {"decoder_start_token_id": 0}),
    "longt5": ("LongT5", "LongT5ForConditionalGeneration", pairs, {"decoder_start_token_id": 0, "local_radius": 4}),
    "mbart": ("MBart", "MBartForConditionalGeneration", pairs, _DECODED),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration", pairs, _DECODED),
    "m2m_100": ("M2M100", "M2M100ForConditionalGeneration", pairs, _DECODED),
    "blenderbot": ("Blenderbot", "BlenderbotForConditionalGeneration", pairs, _DECODED),
    "led": ("LED", "LEDForConditionalGeneration", whole_pairs, {
        **_DECODED, "attention_window": [8, 8],
        **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 64),
    }),
    "prophetnet": ("ProphetNet", "ProphetNetForConditionalGeneration", whole_pairs, {
        **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * HIDDEN),
        **{"num_encoder_layers": 2, "num_decoder_layers": 2, "ngram": 2, "decoder_start_token_id": 2},
    }),
    # Half of its layers choose an expert for each token.
    "switch_transformers": ("SwitchTransformers", "SwitchTransformersForConditionalGeneration", pairs, {
        "decoder_start_token_id": 0, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2,
        "router_jitter_noise": 0.0,
    }),
    # Images.
    "vit_mim": ("ViT", "ViTForMaskedImageModeling", hidden_patches, {"encoder_stride": 8}),
    "deit": ("DeiT", "DeiTForImageClassification", images, _SMALL_IMAGES),
    "beit": ("Beit", "BeitForImageClassification", images, _SMALL_IMAGES),
    "dinov2": ("Dinov2", "Dinov2ForImageClassification", images, _SMALL_IMAGES),
    "swinv2": ("Swinv2", "Swinv2ForImageClassification", images, {
        **_SMALL_IMAGES, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4,
    }),
    "mobilevit": ("MobileViT", "MobileViTForImageClassification", images, {
        **_SMALL_IMAGES, "patch_size": 2, "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [4, 8, 8, 16, 16, 16, 32],
    }),
    "regnet": ("RegNet", "RegNetForImageClassification", images, {
        **_SMALL_IMAGES, **_STAGES, "hidden_sizes": [16, 16, 32, 32], "groups_width": 8, "embedding_size": 8,
    }),
    # Its pool is larger than its images.
    "efficientnet": ("EfficientNet", "EfficientNetForImageClassification", images, {
        **_SMALL_IMAGES, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320,
    }),
    "poolformer": ("PoolFormer", "PoolFormerForImageClassification", images, {**_SMALL_IMAGES, **_STAGES}),
    "pvt_v2": ("PvtV2", "PvtV2ForImageClassification", images, {
        **_SMALL_IMAGES, **_STAGES, "num_attention_heads": [1, 2, 2, 4],
    }),
    "convnextv2": ("ConvNextV2", "ConvNextV2ForImageClassification", images, {
        **_SMALL_IMAGES, **_STAGES, "hidden_sizes": [8, 16, 16, 16], "patch_size": 4,
    }),
    "segformer_maps": ("Segformer", "SegformerForSemanticSegmentation", label_maps, {
        **_SMALL_IMAGES, **_STAGES, "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16,
    }),
    "mobilenet_v1": ("MobileNetV1", "MobileNetV1ForImageClassification", images, {
        **_SMALL_IMAGES, "depth_multiplier": 0.25,
    }),
    "cvt": ("Cvt", "CvtForImageClassification", images, {
        **_SMALL_IMAGES, "depth": [1, 2, 3], "embed_dim": [16, 32, 32], "num_heads": [1, 2, 2],
        **dict.fromkeys(("drop_path_rate", "drop_rate", "attention_drop_rate"), [0.0] * 3),
    }),
    "focalnet": ("FocalNet", "FocalNetForImageClassification", images, {
        **_SMALL_IMAGES, "embed_dim": 16, "depths": [1, 1, 1, 1], "patch_size": 4,
    }),
    # Checks that its images have as many features as there are tokens for them.
    "llava": ("Llava", "LlavaForConditionalGeneration", seen, {
        "text_config": {
            **_PART, "model_type": "llama", "num_key_value_heads": 2, "vocab_size": VOCAB + 1,
            "max_position_embeddings": 64,
        },
        "vision_config": {**_PART, "model_type": "clip_vision_model", "image_size": IMAGE, "patch_size": 8},
        "image_token_index": IMAGE_TOKEN, "vision_feature_layer": -1,
    }),
    # Its loss numbers the rows of its scores by len().
    "blip": ("Blip", "BlipModel", captions, {
        "text_config": {**_PART, "encoder_hidden_size": HIDDEN, "vocab_size": VOCAB, "max_position_embeddings": 64},
        "vision_config": {**_PART, "image_size": IMAGE, "patch_size": 8},
        "projection_dim": 16,
    }),
    "vilt": ("Vilt", "ViltForQuestionAnswering", questions, {**_SMALL_IMAGES, "max_image_length": -1}),
    # Sound and series.
    "ast": ("AST", "ASTForAudioClassification", spectrograms, {
        "max_length": 32, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8,
    }),
    "hubert": ("Hubert", "HubertForSequenceClassification", sounds, {**_FEATURES, "mask_time_prob": 0.0}),
    # Asserts what its labels are, and drops those that are padding.
    "wav2vec2_ctc": ("Wav2Vec2", "Wav2Vec2ForCTC", transcripts, {
        **_FEATURES, "mask_time_prob": 0.0, "ctc_zero_infinity": True,
    }),
    "patchtst": ("PatchTST", "PatchTSTForPrediction", series, _PATCHES),
}  # fmt: skip
NAMES = tuple(TABLE)

# These compute a part in fp32 themselves: logits of causal losses, norms, angles, states.
IN_FP32 = ("mamba", "mamba2", "rwkv", "gptj", "codegen", "qwen3", "gemma3", "olmo2", "cohere", "phi", "stablelm")
IN_FP32 += ("starcoder2", "llama4", "mt5", "jamba", "xlm", "wav2vec2_ctc", "deepseek_v3", "llava", "biogpt")
IN_FP32 += ("longformer", "led", "prophetnet", "switch_transformers", "xglm")

IN_PIECES = ("vilt",)  # the sizes of its images are data


@contextlib.contextmanager
def surroundings(name):
    """In which `name` trains: the masks of xglm are of the default dtype, which must hold those of its weights."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if name == "xglm" else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(name):
    """The model `name` in training mode, and make_batch(batch, length, seed) → keyword arguments that yield a loss."""
    config, model_class, batches, settings = TABLE[name]
    random_state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        model = getattr(hf, model_class)(_config(config, settings))
    finally:
        torch.set_rng_state(random_state)

    def make_batch(batch=2, length=16, seed=0):
        return batches(batch, length, torch.Generator().manual_seed(seed))

    return model.double().train(), make_batch
