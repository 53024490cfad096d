"""How large the models of tests/zoo.py are."""

HIDDEN = 64
LAYERS = 2
HEADS = 4
VOCAB = 199
POSITIONS = 64
IMAGE = 32
CLASSES = 7
MELS = 16
BOUNDS = {"bos_token_id": 1, "eos_token_id": 2}


def two_sides(p):
    """Settings of an encoder and a decoder, under the names that bart's relatives give them."""
    return {
        "d_model": HIDDEN,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 2 * HIDDEN,
        "decoder_ffn_dim": 2 * HIDDEN,
        "dropout": p,
        "attention_dropout": p,
        "activation_dropout": p,
    }
