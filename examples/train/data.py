"""Real text that every machine has: the source files of Python's standard library, as bytes."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

VOCABULARY = 256
HELD_OUT_EVERY = 10  # each tenth file, by name, is never trained on


@dataclass
class Text:
    train: torch.Tensor  # i64 [bytes]
    held_out: torch.Tensor
    train_files: int
    held_out_files: int


def load_text():
    """Training and held-out bytes; files in the order of their names, so that every run sees the same."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(path.parts))
    parts = ([], [])
    for number, path in enumerate(files):
        parts[number % HELD_OUT_EVERY == 0].append(path.read_bytes())
    train, held_out = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8).long() for part in parts)
    return Text(train, held_out, len(parts[0]), len(parts[1]))


def draw_batch(text, batch, length, generator):
    """`batch` pieces of `length` bytes at random places, as the arguments of a causal language model."""
    starts = torch.randint(0, len(text) - length, (batch, 1), generator=generator)
    ids = text[starts + torch.arange(length)]
    return {"input_ids": ids, "labels": ids.clone()}
