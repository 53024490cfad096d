"""Small models of twelve layers, without dropout, and where in the seventh a test puts a fault.

FAULTS[model][direction] = (path of the module whose op is faulty, the engine's op)
"""

import re

import torch
import transformers

LAYERS, FAULTY = 12, 7
FACTOR = 1 + 1e-3
VOCAB, LENGTH, CLASSES = 61, 8, 5


def gpt2():
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=16, n_head=2, vocab_size=VOCAB, n_positions=16, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), _tokens


def bert():
    config = transformers.BertConfig(
        num_hidden_layers=LAYERS, hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=VOCAB,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config), _tokens


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[3, 3, 3, 3], layer_type="basic", num_labels=CLASSES
    )

    def batch(generator):
        pixels = torch.randn(4, 3, 64, 64, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (4,), generator=generator)}

    return transformers.ResNetForImageClassification(config), batch


def _tokens(generator):
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids}


MODELS = {"gpt2": gpt2, "bert": bert, "resnet": resnet}


def build(name):
    """(model, generator → batch)"""
    torch.manual_seed(3)
    model, make_batch = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 and scales of 1 hide what goes wrong with them
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, make_batch


_NORM = f"bert.encoder.layer.{FAULTY}.attention.output"
_STAGE = "resnet.encoder.stages.2"
FAULTS = {
    "gpt2": {
        "forward": (f"transformer.h.{FAULTY}.mlp.act", "FastGelu"),
        "backward": (f"transformer.h.{FAULTY}.mlp.act", "FastGeluGrad"),
    },
    "bert": {
        "forward": (f"{_NORM}.LayerNorm", "LayerNormalization"),
        "backward": (f"{_NORM}.LayerNorm", "LayerNormalizationGrad"),
    },
    "resnet": {
        "forward": (f"{_STAGE}.layers.1.layer.0.convolution", "Conv"),
        "backward": (f"{_STAGE}.layers.1.layer.0.convolution", "ConvGrad"),
    },
}
# Whose output is the first that shows it.
SHOWN_BY = {
    "gpt2": {"forward": f"transformer.h.{FAULTY}.mlp.act", "backward": f"transformer.h.{FAULTY}.mlp.c_fc"},
    "bert": {"forward": f"{_NORM}.LayerNorm", "backward": f"{_NORM}.dense"},
    "resnet": {"forward": f"{_STAGE}.layers.1.layer.0.convolution", "backward": f"{_STAGE}.layers.0.activation"},
}


def faulty_value(training_text, name, direction):
    """The first result of the step that FAULTS names."""
    path, op = FAULTS[name][direction]
    origin = rf"// {'gradient of: ' if direction == 'backward' else '(fused from: )?'}{re.escape(path)}  "
    lines = [line for line in training_text.splitlines() if re.search(rf" = {op}\b.*{origin}", line)]
    (line,) = lines
    return re.match(r"\s*%([^\s:]+):", line).group(1)
