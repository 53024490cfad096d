"""Models of other people's libraries, tiny: name → (module, batch of a step, loss of the output)."""

import pytest
import torch
import transformers


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def mean_square(output):
    return (output if torch.is_tensor(output) else output[0]).square().mean()


# ---------------------------------------------------------------- diffusers


def unet(times):
    cls = pytest.importorskip("diffusers").UNet2DConditionModel
    module = cls(
        sample_size=8,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        layers_per_block=1,
        norm_num_groups=8,
    )

    def batch(index):
        return {
            "sample": numbers(2, 4, 8, 8),
            "timestep": times(index),
            "encoder_hidden_states": numbers(2, 6, 32),
            "return_dict": False,
        }

    return module, batch, mean_square


def unet_of_ints():
    return unet(lambda index: 10 * index + 3)


def unet_of_tensors():
    return unet(lambda index: torch.tensor([3 * index + 1, 7]))


def flux():
    cls = pytest.importorskip("diffusers").FluxTransformer2DModel
    module = cls(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )

    def batch(index):
        image, text = 16 + 4 * (index % 3), 8 + index % 2
        return {
            "hidden_states": numbers(2, image, 4),
            "encoder_hidden_states": numbers(2, text, 32),
            "pooled_projections": numbers(2, 32),
            "timestep": torch.rand(2, dtype=torch.float64),
            "img_ids": torch.arange(3.0 * image).view(image, 3),
            "txt_ids": torch.zeros(text, 3),
            "return_dict": False,
        }

    return module, batch, mean_square


def sd3():
    cls = pytest.importorskip("diffusers").SD3Transformer2DModel
    module = cls(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=8,
    )

    def batch(index):
        return {
            "hidden_states": numbers(2, 4, 8, 8),
            "encoder_hidden_states": numbers(2, 6 + index % 2, 32),
            "pooled_projections": numbers(2, 32),
            "timestep": torch.randint(0, 1000, (2,)),
            "return_dict": False,
        }

    return module, batch, mean_square


# ---------------------------------------------------------------- peft


def lora(model, targets):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=targets, lora_dropout=0.0, init_lora_weights=False)

    def batch(index):
        ids = torch.randint(0, 64, (2, 12 + 2 * (index % 3)))
        return {"input_ids": ids, "labels": ids}

    return peft.get_peft_model(model, config), batch, lambda output: output.loss


def lora_llama():
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        use_cache=False,
    )
    return lora(transformers.LlamaForCausalLM(config), ["q_proj", "v_proj"])


def lora_t5():
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return lora(transformers.T5ForConditionalGeneration(config), ["q", "v"])


# ---------------------------------------------------------------- torch_geometric


class GraphNet(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.up, self.down = layer(8, 16), layer(16, 4)

    def forward(self, x, edge_index):
        return self.down(self.up(x, edge_index).relu(), edge_index)


def graph_net(layer):
    """Each batch is another graph, of another size."""

    def batch(index):
        nodes = 10 + index
        return {"x": numbers(nodes, 8), "edge_index": torch.randint(0, nodes, (2, 30 + 2 * index))}

    return GraphNet(getattr(pytest.importorskip("torch_geometric.nn"), layer)), batch, mean_square


def gcn():
    return graph_net("GCNConv")


def gat():
    return graph_net("GATConv")


# ---------------------------------------------------------------- monai


def dynunet():
    module = pytest.importorskip("monai.networks.nets").DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[4, 8, 8],
    )
    return module, lambda index: {"x": numbers(1 + index % 2, 1, 8, 8, 8)}, mean_square


def swin_unetr():
    module = pytest.importorskip("monai.networks.nets").SwinUNETR(
        in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 4), patch_size=2
    )
    return module, lambda index: {"x_in": numbers(1, 1, 64, 32, 32)}, mean_square


# ---------------------------------------------------------------- others


def x_transformer():
    library = pytest.importorskip("x_transformers")
    layers = library.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    module = library.TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers)
    return module, lambda index: {"x": torch.randint(0, 64, (2, 12 + 2 * (index % 3)))}, mean_square


def upernet():
    """transformers' segmenter of a pyramid of pools, with the loss over maps of labels."""
    backbone = transformers.ConvNextConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone,
        hidden_size=16,
        pool_scales=[1, 2],
        auxiliary_in_channels=16,
        auxiliary_channels=8,
        num_labels=5,
    )
    module = transformers.UperNetForSemanticSegmentation(config)

    def batch(index):
        return {
            "pixel_values": numbers(2 + index % 2, 3, 32, 32),
            "labels": torch.randint(0, 5, (2 + index % 2, 32, 32)),
        }

    return module, batch, lambda output: output.loss


# model → exports of ORTModule that 20 steps take.
EXPORTS = {
    unet_of_ints: 2,  # the second has the number as an input
    unet_of_tensors: 1,
    flux: 1,
    sd3: 1,
    lora_llama: 1,
    lora_t5: 1,
    gcn: 1,
    gat: 1,
    dynunet: 1,
    swin_unetr: 2,  # einops keeps classes of tensors in a global, to which the copy in PyTorch adds its own
    x_transformer: 1,
    upernet: 1,
}

# Their parts in fp64 would run on the slowest kernels.
SINGLE = (swin_unetr,)
# They compute parts in fp32 themselves, whatever their weights are.
IN_FP32 = (flux, sd3, lora_llama, lora_t5)
