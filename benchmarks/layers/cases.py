"""Layers and functions as models call them, one at a time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Call(nn.Module):
    """A function of inputs, then of these parameters."""

    def __init__(self, function, parameters=()):
        super().__init__()
        self.function, self.parameters_of_it = function, nn.ParameterList(map(nn.Parameter, parameters))

    def forward(self, *inputs):
        return self.function(*inputs, *self.parameters_of_it)


noise = torch.randn


def leaf(*sizes):
    return torch.randn(sizes).requires_grad_()


def indices(high, *sizes):
    return torch.randint(0, high, sizes)


# Family → layer → what makes (module, inputs).
CASES = {
    "losses": {
        "ce_weight": lambda: (
            Call(lambda x, y: F.cross_entropy(x, y, weight=torch.linspace(0.5, 1.5, x.shape[1]))),
            (leaf(1024, 20000), indices(20000, 1024)),
        ),
        "ce_weight_small": lambda: (
            Call(lambda x, y: F.cross_entropy(x, y, weight=torch.linspace(0.5, 1.5, 10))),
            (leaf(65536, 10), indices(10, 65536)),
        ),
        "ce_img_weight": lambda: (
            Call(lambda x, y: F.cross_entropy(x, y, weight=torch.linspace(0.5, 1.5, 21))),
            (leaf(4, 21, 256, 256), indices(21, 4, 256, 256)),
        ),
        "bce_logits": lambda: (
            Call(lambda x, y: F.binary_cross_entropy_with_logits(x, y)),
            (leaf(4, 1, 512, 512), torch.rand(4, 1, 512, 512)),
        ),
        "bce_logits_posw": lambda: (
            Call(lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor([3.0]))),
            (leaf(4, 1, 512, 512), torch.rand(4, 1, 512, 512)),
        ),
        "kl": lambda: (
            Call(lambda a, b: F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="batchmean")),
            (leaf(4096, 1000), noise(4096, 1000)),
        ),
        "huber": lambda: (Call(lambda a, b: F.huber_loss(a, b)), (leaf(4096, 1000), noise(4096, 1000))),
        "smoothl1": lambda: (Call(lambda a, b: F.smooth_l1_loss(a, b)), (leaf(4096, 1000), noise(4096, 1000))),
        "mse": lambda: (Call(lambda a, b: F.mse_loss(a, b)), (leaf(4096, 1000), noise(4096, 1000))),
        "triplet": lambda: (nn.TripletMarginLoss(), tuple(leaf(4096, 256) for _ in range(3))),
        "ctc": lambda: (
            Call(
                lambda x, y: F.ctc_loss(
                    x.log_softmax(-1),
                    y,
                    torch.full((16,), 200, dtype=torch.long),
                    torch.full((16,), 30, dtype=torch.long),
                )
            ),
            (leaf(200, 16, 40), indices(39, 16, 30) + 1),
        ),
        "ce_soft": lambda: (
            Call(lambda x, y: F.cross_entropy(x, y.softmax(-1))),
            (leaf(4096, 1000), noise(4096, 1000)),
        ),
        "nll": lambda: (Call(lambda x, y: F.nll_loss(x.log_softmax(-1), y)), (leaf(4096, 1000), indices(1000, 4096))),
        "nll_img": lambda: (
            Call(lambda x, y: F.nll_loss(x.log_softmax(1), y)),
            (leaf(4, 21, 256, 256), indices(21, 4, 256, 256)),
        ),
        "nll_w": lambda: (
            Call(lambda x, y: F.nll_loss(x.log_softmax(-1), y, weight=torch.linspace(0.5, 1.5, 1000))),
            (leaf(4096, 1000), indices(1000, 4096)),
        ),
        "focal": lambda: (
            Call(
                lambda x, y: (
                    (1 - torch.exp(-F.cross_entropy(x, y, reduction="none"))) ** 2
                    * F.cross_entropy(x, y, reduction="none")
                ).mean()
            ),
            (leaf(8192, 100), indices(100, 8192)),
        ),
        "dice": lambda: (
            Call(
                lambda x, y: (
                    1 - (2 * (x.sigmoid() * y).sum((2, 3)) / (x.sigmoid().sum((2, 3)) + y.sum((2, 3)) + 1)).mean()
                )
            ),
            (leaf(8, 4, 256, 256), torch.rand(8, 4, 256, 256)),
        ),
        "onehot": lambda: (Call(lambda x, y: (x * F.one_hot(y, 100)).sum(-1)), (leaf(8192, 100), indices(100, 8192))),
        "simclr": lambda: (
            Call(lambda x, y: F.cross_entropy(F.normalize(x) @ F.normalize(y).T / 0.1, torch.arange(1024))),
            (leaf(1024, 128), leaf(1024, 128)),
        ),
        "cosemb": lambda: (nn.CosineEmbeddingLoss(), (leaf(4096, 256), leaf(4096, 256), torch.ones(4096))),
        "margin": lambda: (nn.MarginRankingLoss(), (leaf(65536), leaf(65536), torch.ones(65536))),
        "multimargin": lambda: (nn.MultiMarginLoss(), (leaf(4096, 100), indices(100, 4096))),
        "poisson": lambda: (nn.PoissonNLLLoss(), (leaf(4096, 256), torch.rand(4096, 256))),
        "bce": lambda: (
            Call(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y)),
            (leaf(4, 1, 512, 512), torch.rand(4, 1, 512, 512)),
        ),
    },
    "activations": {
        "mish": lambda: (nn.Mish(), (leaf(64, 256, 32, 32),)),
        "silu": lambda: (nn.SiLU(), (leaf(64, 256, 32, 32),)),
        "hardswish": lambda: (nn.Hardswish(), (leaf(64, 256, 32, 32),)),
        "elu": lambda: (nn.ELU(), (leaf(64, 256, 32, 32),)),
        "prelu": lambda: (nn.PReLU(256), (leaf(64, 256, 32, 32),)),
        "leaky": lambda: (nn.LeakyReLU(), (leaf(64, 256, 32, 32),)),
        "softplus": lambda: (nn.Softplus(), (leaf(64, 256, 32, 32),)),
        "logsigmoid": lambda: (nn.LogSigmoid(), (leaf(64, 256, 32, 32),)),
        "gelu_tanh": lambda: (nn.GELU("tanh"), (leaf(64, 256, 32, 32),)),
        "glu": lambda: (nn.GLU(1), (leaf(64, 256, 32, 32),)),
        "softmax1": lambda: (Call(lambda x: x.softmax(1)), (leaf(8, 64, 64, 64),)),
        "logsoftmax1": lambda: (Call(lambda x: x.log_softmax(1)), (leaf(8, 64, 64, 64),)),
        "softmax_last": lambda: (Call(lambda x: x.softmax(-1)), (leaf(8, 8, 256, 256),)),
        "gumbel": lambda: (Call(lambda x: F.gumbel_softmax(x)), (leaf(8192, 100),)),
        "relu6": lambda: (nn.ReLU6(), (leaf(64, 256, 32, 32),)),
        "selu": lambda: (nn.SELU(), (leaf(64, 256, 32, 32),)),
        "celu": lambda: (nn.CELU(), (leaf(64, 256, 32, 32),)),
        "tanhshrink": lambda: (nn.Tanhshrink(), (leaf(64, 256, 32, 32),)),
        "softsign": lambda: (nn.Softsign(), (leaf(64, 256, 32, 32),)),
        "hardtanh": lambda: (nn.Hardtanh(), (leaf(64, 256, 32, 32),)),
        "hardshrink": lambda: (nn.Hardshrink(), (leaf(64, 256, 32, 32),)),
        "threshold": lambda: (nn.Threshold(0.1, 0.0), (leaf(64, 256, 32, 32),)),
        "softmin": lambda: (nn.Softmin(-1), (leaf(4096, 512),)),
        "rrelu": lambda: (nn.RReLU(), (leaf(64, 256, 16, 16),)),
    },
    "norms": {
        "norm_l2": lambda: (Call(lambda x: F.normalize(x, dim=-1)), (leaf(16384, 512),)),
        "vecnorm": lambda: (Call(lambda x: x.norm(dim=1)), (leaf(64, 512, 256),)),
        "cosine": lambda: (nn.CosineSimilarity(), (leaf(16384, 512), leaf(16384, 512))),
        "instnorm": lambda: (nn.InstanceNorm2d(64, affine=True), (leaf(16, 64, 64, 64),)),
        "groupnorm": lambda: (nn.GroupNorm(8, 64), (leaf(16, 64, 64, 64),)),
        "bn1d": lambda: (nn.BatchNorm1d(256), (leaf(4096, 256),)),
        "bn3d": lambda: (nn.BatchNorm3d(32), (leaf(4, 32, 16, 64, 64),)),
        "lrn": lambda: (nn.LocalResponseNorm(5), (leaf(16, 64, 56, 56),)),
        "ln_noaff": lambda: (nn.LayerNorm(512, elementwise_affine=False), (leaf(16, 512, 512),)),
        "rmsnorm": lambda: (nn.RMSNorm(512), (leaf(16, 512, 512),)),
        "bn_eval": lambda: (nn.BatchNorm2d(64).eval(), (leaf(16, 64, 56, 56),)),
        "bn_train": lambda: (nn.BatchNorm2d(64), (leaf(16, 64, 56, 56),)),
        "weightnorm": lambda: (weight_norm(nn.Linear(1024, 1024)), (leaf(256, 1024),)),
        "spectral": lambda: (spectral_norm(nn.Linear(1024, 1024)), (leaf(256, 1024),)),
        "norm_dim": lambda: (Call(lambda x: x / x.norm(dim=-1, keepdim=True)), (leaf(16384, 512),)),
        "mean_var": lambda: (
            Call(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
            (leaf(4096, 1024),),
        ),
    },
    "convolutions": {
        "conv1d": lambda: (nn.Conv1d(128, 128, 5, padding=2), (leaf(16, 128, 512),)),
        "conv1d_dw": lambda: (nn.Conv1d(256, 256, 4, padding=3, groups=256), (leaf(16, 256, 512),)),
        "conv2d_dw": lambda: (nn.Conv2d(128, 128, 7, padding=3, groups=128), (leaf(8, 128, 56, 56),)),
        "conv2d_1x1_bias": lambda: (nn.Conv2d(128, 256, 1), (leaf(8, 128, 56, 56),)),
        "conv3d": lambda: (nn.Conv3d(16, 32, 3, padding=1), (leaf(2, 16, 32, 64, 64),)),
        "convT2d": lambda: (nn.ConvTranspose2d(64, 32, 2, stride=2), (leaf(8, 64, 64, 64),)),
        "conv_nobias_s2": lambda: (nn.Conv2d(64, 128, 3, 2, 1, bias=False), (leaf(8, 64, 56, 56),)),
        "conv_stem": lambda: (nn.Conv2d(3, 64, 7, 2, 3, bias=False), (noise(8, 3, 224, 224),)),
        "conv_patch": lambda: (nn.Conv2d(3, 768, 16, 16), (noise(8, 3, 224, 224),)),
        "conv_small": lambda: (nn.Conv2d(1, 6, 5), (noise(64, 1, 28, 28),)),
        "conv_group": lambda: (nn.Conv2d(128, 128, 3, padding=1, groups=32), (leaf(8, 128, 28, 28),)),
        "conv_dil": lambda: (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (leaf(8, 64, 56, 56),)),
        "conv_same": lambda: (nn.Conv2d(32, 32, 4, padding="same"), (leaf(8, 32, 56, 56),)),
        "conv_reflect": lambda: (nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"), (leaf(8, 32, 56, 56),)),
        "convT_s2k4": lambda: (nn.ConvTranspose2d(64, 32, 4, 2, 1), (leaf(8, 64, 32, 32),)),
        "convT1d": lambda: (nn.ConvTranspose1d(64, 32, 4, 2, 1), (leaf(8, 64, 512),)),
        "conv3d_large": lambda: (nn.Conv3d(512, 512, 3, padding=1, bias=False), (leaf(4, 512, 2, 4, 4),)),
        "conv3d_alone": lambda: (nn.Conv3d(64, 64, 3, padding=1, bias=False), (leaf(1, 64, 8, 28, 28),)),
        "conv3d_1": lambda: (nn.Conv3d(32, 64, 1), (leaf(2, 32, 16, 32, 32),)),
    },
    "pools, padding, images": {
        "reflectpad": lambda: (nn.ReflectionPad2d(3), (leaf(16, 64, 64, 64),)),
        "replpad": lambda: (nn.ReplicationPad2d(3), (leaf(16, 64, 64, 64),)),
        "circpad": lambda: (Call(lambda x: F.pad(x, (2, 2, 2, 2), mode="circular")), (leaf(16, 64, 64, 64),)),
        "maxpool3d": lambda: (nn.MaxPool3d(2), (leaf(4, 32, 32, 64, 64),)),
        "avgpool3d": lambda: (nn.AvgPool3d(2), (leaf(4, 32, 32, 64, 64),)),
        "adaptive3d": lambda: (nn.AdaptiveAvgPool3d(1), (leaf(4, 32, 32, 64, 64),)),
        "adaptmax2d": lambda: (nn.AdaptiveMaxPool2d(7), (leaf(16, 64, 56, 56),)),
        "adaptavg2d_odd": lambda: (nn.AdaptiveAvgPool2d(5), (leaf(16, 64, 56, 56),)),
        "maxpool2d": lambda: (nn.MaxPool2d(3, 2, 1), (leaf(16, 64, 112, 112),)),
        "avgpool2d": lambda: (nn.AvgPool2d(2), (leaf(16, 64, 112, 112),)),
        "upsample_bil": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (leaf(8, 64, 64, 64),)),
        "upsample_near": lambda: (nn.Upsample(scale_factor=2), (leaf(8, 64, 64, 64),)),
        "upsample_bic": lambda: (nn.Upsample(scale_factor=2, mode="bicubic"), (leaf(8, 16, 64, 64),)),
        "upsample_tri": lambda: (nn.Upsample(scale_factor=2, mode="trilinear"), (leaf(2, 16, 16, 32, 32),)),
        "gridsample": lambda: (
            Call(lambda x, g: F.grid_sample(x, g, align_corners=False)),
            (leaf(8, 32, 64, 64), torch.rand(8, 64, 64, 2) * 2 - 1),
        ),
        "pixelshuffle": lambda: (nn.PixelShuffle(2), (leaf(8, 64, 64, 64),)),
        "unfold": lambda: (nn.Unfold(3, padding=1), (leaf(8, 32, 64, 64),)),
        "fold": lambda: (nn.Fold((64, 64), 3, padding=1), (leaf(4, 32 * 9, 64 * 64),)),
        "maxpool_k5": lambda: (nn.MaxPool2d(5, 1, 2), (leaf(8, 64, 40, 40),)),
        "maxpool1d": lambda: (nn.MaxPool1d(3, 2, 1), (leaf(16, 64, 1024),)),
        "avgpool1d": lambda: (nn.AvgPool1d(2), (leaf(16, 64, 1024),)),
        "avgpool3": lambda: (nn.AvgPool2d(3, 1, 1), (leaf(8, 64, 56, 56),)),
        "adaptavg1": lambda: (nn.AdaptiveAvgPool2d(1), (leaf(16, 512, 14, 14),)),
        "gmax": lambda: (Call(lambda x: x.amax((2, 3))), (leaf(16, 512, 14, 14),)),
        "lppool": lambda: (nn.LPPool2d(2, 2), (leaf(8, 64, 56, 56),)),
        "unfold_t": lambda: (Call(lambda x: x.unfold(1, 16, 8)), (leaf(16, 4096),)),
        "pixelunshuf": lambda: (nn.PixelUnshuffle(2), (leaf(8, 64, 64, 64),)),
        "chshuffle": lambda: (nn.ChannelShuffle(4), (leaf(8, 64, 64, 64),)),
        "affinegrid": lambda: (
            Call(lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, align_corners=False), align_corners=False)),
            (leaf(8, 3, 64, 64), leaf(8, 2, 3)),
        ),
        "interp_area": lambda: (Call(lambda x: F.interpolate(x, size=(28, 28), mode="area")), (leaf(8, 64, 56, 56),)),
        "interp_bil_odd": lambda: (
            Call(lambda x: F.interpolate(x, size=(97, 97), mode="bilinear", align_corners=True)),
            (leaf(8, 64, 56, 56),),
        ),
    },
    "products, attention, recurrence": {
        "cdist": lambda: (Call(lambda a, b: torch.cdist(a, b)), (leaf(8, 256, 64), leaf(8, 256, 64))),
        "lstm": lambda: (nn.LSTM(256, 256, 2, batch_first=True), (leaf(16, 64, 256),)),
        "gru": lambda: (nn.GRU(256, 256, 2, batch_first=True), (leaf(16, 64, 256),)),
        "bilstm": lambda: (nn.LSTM(128, 128, 1, batch_first=True, bidirectional=True), (leaf(32, 64, 128),)),
        "lstm_one": lambda: (nn.LSTM(64, 128, batch_first=True), (leaf(1, 100, 64),)),
        "lstm_rows": lambda: (nn.LSTM(28, 128, batch_first=True), (leaf(256, 28, 28),)),
        "lstm_wide": lambda: (nn.LSTM(300, 1024, batch_first=True), (leaf(16, 60, 300),)),
        "gru_one": lambda: (nn.GRU(64, 128, batch_first=True), (leaf(1, 100, 64),)),
        "gru_wide": lambda: (nn.GRU(300, 1024, batch_first=True), (leaf(16, 60, 300),)),
        "rnn_wide": lambda: (nn.RNN(300, 1024, batch_first=True), (leaf(16, 60, 300),)),
        "bilinear": lambda: (nn.Bilinear(64, 64, 64), (leaf(1024, 64), leaf(1024, 64))),
        "mha": lambda: (nn.MultiheadAttention(256, 8, batch_first=True), (leaf(8, 256, 256),) * 3),
        "enc": lambda: (nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), (leaf(8, 256, 256),)),
        "einsum": lambda: (
            Call(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b)),
            (leaf(8, 8, 256, 64), leaf(8, 8, 256, 64)),
        ),
        "matmul_bc": lambda: (Call(lambda a, b: a @ b), (leaf(64, 128, 128), leaf(128, 128))),
        "linear": lambda: (nn.Linear(1024, 1024), (leaf(1024, 1024),)),
        "linear_small": lambda: (nn.Linear(64, 10), (leaf(8192, 64),)),
        "linear_bs1": lambda: (nn.Linear(4096, 4096), (leaf(1, 4096),)),
        "mlp": lambda: (
            nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
            (noise(64, 784),),
        ),
        "bmm": lambda: (Call(lambda a, b: torch.bmm(a, b)), (leaf(64, 256, 64), leaf(64, 64, 256))),
        "baddbmm": lambda: (
            Call(lambda c, a, b: torch.baddbmm(c, a, b)),
            (leaf(64, 256, 256), leaf(64, 256, 64), leaf(64, 64, 256)),
        ),
        "mv": lambda: (Call(lambda a, b: a @ b), (leaf(4096, 4096), leaf(4096))),
        "outer": lambda: (Call(lambda a, b: torch.outer(a, b)), (leaf(2048), leaf(2048))),
        "einsum3": lambda: (
            Call(lambda a, b, c: torch.einsum("bi,ij,bj->b", a, b, c)),
            (leaf(512, 256), leaf(256, 256), leaf(512, 256)),
        ),
        "sdpa": lambda: (
            Call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
            tuple(leaf(8, 8, 256, 64) for _ in range(3)),
        ),
        "sdpa_causal": lambda: (
            Call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            tuple(leaf(8, 8, 256, 64) for _ in range(3)),
        ),
        "sdpa_long": lambda: (
            Call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
            tuple(leaf(1, 4, 2048, 64) for _ in range(3)),
        ),
        "att_written": lambda: (
            Call(lambda q, k, v: ((q @ k.transpose(-1, -2)) / 8).softmax(-1) @ v),
            tuple(leaf(8, 8, 256, 64) for _ in range(3)),
        ),
        "relpos": lambda: (
            Call(lambda q, k, v, b: ((q @ k.transpose(-1, -2)) / 8 + b).softmax(-1) @ v),
            tuple(leaf(8, 8, 256, 64) for _ in range(3)) + (leaf(8, 256, 256),),
        ),
        "transformer": lambda: (
            nn.Transformer(128, 4, 2, 2, 256, batch_first=True),
            (noise(8, 64, 128), noise(8, 64, 128)),
        ),
        "rnn": lambda: (nn.RNN(128, 128, batch_first=True), (leaf(32, 64, 128),)),
        "pdist": lambda: (Call(lambda x: ((x[:, None] - x[None]) ** 2).sum(-1)), (leaf(256, 64),)),
    },
    "indices": {
        "index_select1": lambda: (Call(lambda x, i: x.index_select(1, i)), (leaf(64, 1000, 128), indices(1000, 500))),
        "gather1": lambda: (Call(lambda x, i: x.gather(1, i)), (leaf(64, 1000, 128), indices(1000, 64, 500, 128))),
        "scatter_add": lambda: (
            Call(lambda x, i: torch.zeros(1000, 128).scatter_add(0, i, x)),
            (leaf(50000, 128), indices(1000, 50000, 128)),
        ),
        "index_add": lambda: (
            Call(lambda x, i: torch.zeros(1000, 128).index_add(0, i, x)),
            (leaf(50000, 128), indices(1000, 50000)),
        ),
        "sort": lambda: (Call(lambda x: x.sort(1)[0]), (leaf(256, 4096),)),
        "topk": lambda: (Call(lambda x: x.topk(8, -1)[0]), (leaf(4096, 512),)),
        "median": lambda: (Call(lambda x: x.median(-1)[0]), (leaf(1024, 2048),)),
        "max_dim": lambda: (Call(lambda x: x.max(1)[0]), (leaf(64, 512, 256),)),
        "embbag": lambda: (nn.EmbeddingBag(10000, 128), (indices(10000, 512, 50),)),
        "emb": lambda: (nn.Embedding(30000, 512, padding_idx=0), (indices(30000, 32, 256),)),
        "emb_sum": lambda: (Call(lambda i, w: w[i].sum(1), (noise(10000, 64),)), (indices(10000, 512, 50),)),
        "index_put": lambda: (
            Call(lambda x, i, v: x.index_put((i,), v, accumulate=True)),
            (leaf(1000, 128), indices(1000, 5000), leaf(5000, 128)),
        ),
        "adv_index": lambda: (
            Call(lambda x, i, j: x[i, j]),
            (leaf(512, 512, 32), indices(512, 5000), indices(512, 5000)),
        ),
        "scatter_mean": lambda: (
            Call(lambda x, i: torch.zeros(1000, 64).scatter_reduce(0, i, x, "mean", include_self=False)),
            (leaf(20000, 64), indices(1000, 20000, 1).expand(-1, 64)),
        ),
        "scatter_amax": lambda: (
            Call(lambda x, i: torch.zeros(1000, 64).scatter_reduce(0, i, x, "amax", include_self=False)),
            (leaf(20000, 64), indices(1000, 20000, 1).expand(-1, 64)),
        ),
        "gat_softmax": lambda: (
            Call(lambda x, i: (lambda e: e / torch.zeros(1000).index_add(0, i, e)[i])((x - x.max()).exp())),
            (leaf(20000), indices(1000, 20000)),
        ),
        "argmax": lambda: (Call(lambda x: (x * F.one_hot(x.argmax(-1), 100)).sum(-1)), (leaf(8192, 100),)),
    },
    "everything else": {
        "cumsum": lambda: (Call(lambda x: x.cumsum(1)), (leaf(64, 1024, 64),)),
        "cumprod": lambda: (Call(lambda x: x.abs().cumprod(1)), (leaf(64, 1024, 64),)),
        "logsumexp": lambda: (Call(lambda x: x.logsumexp(-1)), (leaf(4096, 2048),)),
        "var": lambda: (Call(lambda x: x.var(-1)), (leaf(4096, 2048),)),
        "std0": lambda: (Call(lambda x: x.std(0)), (leaf(4096, 2048),)),
        "prod": lambda: (Call(lambda x: x.prod(-1)), (leaf(4096, 64),)),
        "fft": lambda: (Call(lambda x: torch.fft.rfft(x).abs()), (leaf(256, 4096),)),
        "where": lambda: (Call(lambda a, b: torch.where(a > 0, a, b)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "masked_fill": lambda: (
            Call(lambda a, m: a.masked_fill(m, 0.0)),
            (leaf(64, 512, 256), noise(64, 512, 256) > 0),
        ),
        "stack": lambda: (Call(lambda a, b: torch.stack([a, b], 1)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "roll": lambda: (Call(lambda a: a.roll((3, 3), (1, 2))), (leaf(16, 56, 56, 96),)),
        "flip": lambda: (Call(lambda a: a.flip(1)), (leaf(64, 512, 256),)),
        "repeat": lambda: (Call(lambda a: a.repeat(1, 4, 1)), (leaf(64, 128, 256),)),
        "repeat_interleave": lambda: (Call(lambda a: a.repeat_interleave(4, 1)), (leaf(64, 128, 256),)),
        "permute": lambda: (Call(lambda a: a.permute(0, 3, 1, 2).contiguous()), (leaf(16, 64, 64, 128),)),
        "tril": lambda: (Call(lambda a: a.tril()), (leaf(64, 512, 512),)),
        "clamp": lambda: (Call(lambda a: a.clamp(-1, 1)), (leaf(64, 512, 256),)),
        "pow": lambda: (Call(lambda a: a.abs() ** 1.7), (leaf(64, 512, 256),)),
        "sincos": lambda: (Call(lambda a: a.sin() + a.cos()), (leaf(64, 512, 256),)),
        "erf": lambda: (Call(lambda a: a.erf()), (leaf(64, 512, 256),)),
        "atan2": lambda: (Call(lambda a, b: torch.atan2(a, b)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "dropout2d": lambda: (nn.Dropout2d(), (leaf(64, 64, 56, 56),)),
        "alphadropout": lambda: (nn.AlphaDropout(), (leaf(64, 512, 256),)),
        "slice_step": lambda: (Call(lambda x: x[:, ::2] * 2), (leaf(64, 512, 256),)),
        "cat": lambda: (Call(lambda a, b: torch.cat([a, b], 1)), (leaf(8, 64, 64, 64), leaf(8, 64, 64, 64))),
        "chunk": lambda: (Call(lambda a: (lambda p: p[0] * p[1].sigmoid())(a.chunk(2, -1))), (leaf(64, 512, 512),)),
        "exp_sum": lambda: (Call(lambda x: x.exp().sum()), (leaf(64, 512, 256),)),
        "log": lambda: (Call(lambda x: (x.abs() + 1).log()), (leaf(64, 512, 256),)),
        "sqrt": lambda: (Call(lambda x: (x.abs() + 1).sqrt()), (leaf(64, 512, 256),)),
        "div": lambda: (Call(lambda a, b: a / (b.abs() + 1)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "maximum": lambda: (Call(lambda a, b: torch.maximum(a, b)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "bcast_add": lambda: (Call(lambda a, b: a + b), (leaf(64, 64, 32, 32), leaf(1, 64, 1, 1))),
        "lerp": lambda: (Call(lambda a, b: torch.lerp(a, b, 0.3)), (leaf(64, 512, 256), leaf(64, 512, 256))),
        "addcmul": lambda: (Call(lambda a, b, c: torch.addcmul(a, b, c)), tuple(leaf(64, 512, 256) for _ in range(3))),
        "dropout": lambda: (nn.Dropout(0.1), (leaf(64, 512, 256),)),
    },
}
