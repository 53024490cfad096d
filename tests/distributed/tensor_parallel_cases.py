"""One rank: modules whose layers parallelize_module has divided, through ORTModule and in eager. Arguments: cases."""

import functools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from lowtide.distributed import meeting
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule

STEPS, WIDTH, HEADS, WORDS = 20, 16, 4, 24


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Attention(nn.Module):
    """Of as many heads as this process has columns for."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm, self.output = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, labels):
        h = self.words(ids)
        for layer in self.layers:
            h = layer(h)
        logits = self.output(self.norm(h))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def parallel_mlp(mesh, **options):
    return parallelize_module(Mlp().double(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def parallel_llama(mesh):
    model = Llama().double()
    plan = {"words": RowwiseParallel(input_layouts=Replicate()), "output": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w2": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    return model


def parallel_sequences(mesh):
    """What is between the products is divided along the sequence."""
    model = Llama().double()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for layer in model.layers:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
        plan |= {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
        plan |= {name: PrepareModuleInput(**whole) for name in ("attention", "feed_forward")}
        parallelize_module(layer, mesh, plan)
    return model


def sharded_too(mesh):
    model = parallel_llama(mesh["tensor"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


class Unknown(nn.Module):
    """Takes a sum of DTensors apart, which PyTorch does with communication of its own."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x):
        return self.up(x).sum(-1, keepdim=True).square().full_tensor()


def parallel_unknown(mesh):
    return parallelize_module(Unknown().double(), mesh, {"up": ColwiseParallel(use_local_output=False)})


def parallel_output(mesh):
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(use_local_output=False)}
    return parallelize_module(Mlp().double(), mesh, plan)


def parallel_input(mesh):
    return distribute_module(Mlp().double(), mesh)  # replicated


def placed_vectors(generator, step):
    mesh = init_device_mesh("cpu", (2,))
    return (DTensor.from_local(*vectors(generator, step), mesh, [Replicate()], run_check=False),)


def vectors(generator, step):
    return (torch.randn(4 + 2 * (step % 2), 6, WIDTH, dtype=torch.float64, generator=generator),)


def sentences(generator, step):
    ids = torch.randint(WORDS, (3 + step % 2, 9), generator=generator)
    return ids[:, :-1], ids[:, 1:]


# Case → (module, batches, words of the reason if PyTorch runs it)
CASES = {
    "mlp": (parallel_mlp, vectors, None),
    "llama": (parallel_llama, sentences, None),
    "budget": (parallel_llama, sentences, None),
    "budget_of_each": (parallel_llama, sentences, None),
    "sequences": (parallel_sequences, sentences, None),
    "and_fully_shard": (sharded_too, sentences, None),
    "output": (parallel_output, vectors, "DTensor"),
    "input": (parallel_input, placed_vectors, "DTensor"),
    "unknown": (parallel_unknown, vectors, "sum of DTensors"),
}


def train(module, make_batch, place, accumulation=1):
    """Losses, then parameters. All processes along the tensors' dim of a mesh have the same batches."""
    generator = torch.Generator().manual_seed(place)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3)
    losses = []
    for step in range(STEPS):
        for _ in range(accumulation):
            loss = module(*make_batch(generator, step))
            loss = loss if loss.dim() == 0 else loss.square().mean()
            loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
            loss.backward()
            losses.append(loss.detach())
        divided = [parameter for parameter in module.parameters() if isinstance(parameter, DTensor)]
        if accumulation > 1:
            torch.nn.utils.clip_grad_norm_(divided, 1.0)
        if isinstance(module, ORTModule) and module.fallback_reason is None:
            for parameter in divided:
                check_layout(parameter)
        optimizer.step()
        optimizer.zero_grad()
    module.eval()
    with torch.no_grad():
        found = module(*make_batch(generator, 0)).square().mean()
        losses.append(found.full_tensor() if isinstance(found, DTensor) else found)
    whole = [getattr(parameter, "full_tensor", parameter.detach)() for parameter in module.parameters()]
    return [torch.stack(losses), *whole]


def check_layout(parameter):
    """Gradients lie as parameters do: eager leaves some as sums to come, and some whole."""
    assert isinstance(parameter.grad, DTensor)
    assert parameter.grad.placements == parameter.placements, (parameter.grad.placements, parameter.placements)


def look_at_context_parallel():
    """It divides sequences among processes: refused by its name, also of a module that has a graph already. PyTorch
    itself has none for the CPU, so that nothing takes over."""
    from torch.distributed.tensor.experimental import context_parallel

    module = ORTModule(Attention())
    x = torch.randn(2, 8, WIDTH)
    assert module(x).shape == x.shape and module.fallback_reason is None
    with context_parallel(init_device_mesh("cpu", (2,)), buffers=[x], buffer_seq_dims=[1]):
        try:
            module(x)
        except UnsupportedError as error:
            assert "context parallel attention" in str(error), error
        else:
            raise AssertionError("attention ran without its other half")


def compare(case):
    make, make_batch, refused = CASES[case]
    if dist.get_world_size() == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        place = mesh.get_local_rank("data")
    else:
        mesh, place = init_device_mesh("cpu", (2,)), 0
    found = []
    options = {"memory_budget": "85%", "verify": True} if case.startswith("budget") else {}
    if case == "budget_of_each" and dist.get_rank() == 1:
        meeting.WAIT_S = 0  # it comes too late for the plans of the first, and checks its own
    for wrap in (lambda module: module, functools.partial(ORTModule, **options)):
        torch.manual_seed(0)
        module = wrap(make(mesh))
        found.append(train(module, make_batch, place, accumulation=2 if case == "mlp" else 1))
    reason = module.fallback_reason
    assert reason is None if refused is None else refused in reason, reason
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        look_at_context_parallel() if case == "context_parallel" else compare(case)
        print(f"{case}: right on rank {dist.get_rank()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
