"""Cases for the whole sequence-to-sequence model: embeddings and positions around torch.nn.Transformer's layers."""
import math

import torch
from torch import nn

from .attention import draw
from .common import Numbers, plain

WIDTH, HEADS, HIDDEN, SOURCE, TARGET = 4, 2, 6, 7, 6


class Model(nn.Module):
    """Names of its parameters are PyTorch's, and Regard's for what PyTorch has no module for."""

    def __init__(self, norm_first, activation, learned, shared, tied):
        super().__init__()
        sizes = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "activation": activation,
                 "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
        stacks = {}
        if not norm_first:  # torch.nn.Transformer would put a norm behind the last one
            stacks = {"custom_encoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), 2),
                      "custom_decoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 2)}
        self.transformer = nn.Transformer(num_encoder_layers=2, num_decoder_layers=2, **sizes, **stacks)
        self.source_tokens = nn.Embedding(SOURCE, WIDTH, dtype=torch.float64)
        self.target_tokens = None if shared else nn.Embedding(TARGET, WIDTH, dtype=torch.float64)
        self.head = None if tied else nn.Linear(WIDTH, SOURCE if shared else TARGET, dtype=torch.float64)
        self.source_positions = nn.Embedding(8, WIDTH, dtype=torch.float64) if learned else None
        self.target_positions = nn.Embedding(8, WIDTH, dtype=torch.float64) if learned else None

    def positions(self, table, length):
        if table is not None:
            return table.weight[:length]
        place = torch.arange(length, dtype=torch.float64)[:, None]
        angle = place / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
        return torch.stack([angle.sin(), angle.cos()], -1).reshape(length, WIDTH)

    def forward(self, source, target, padding):
        table = self.source_tokens if self.target_tokens is None else self.target_tokens
        read = self.source_tokens(source) * math.sqrt(WIDTH) + self.positions(self.source_positions, source.shape[1])
        told = table(target) * math.sqrt(WIDTH) + self.positions(self.target_positions, target.shape[1])
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        memory = self.transformer.encoder(read, src_key_padding_mask=padding)
        decoded = self.transformer.decoder(told, memory, tgt_mask=causal, memory_key_padding_mask=padding)
        return memory, self.head(decoded) if self.head is not None else decoded @ table.weight.T


def case(name, norm_first=True, activation="gelu", learned=False, shared=False, tied=True):
    numbers = Numbers("encoder_decoder", name)
    model = Model(norm_first, activation, learned, shared, tied)
    draw(model, numbers, scale=0.6)
    source, target = numbers.integers(0, SOURCE, 2, 5), numbers.integers(0, TARGET, 2, 4)
    mask = torch.arange(5)[None] < torch.tensor([[5], [3]])
    memory, logits = model(source, target, ~mask)
    upstream = numbers.normal(*logits.shape, grad=False)
    (logits * upstream).sum().backward()
    parameters = dict(model.named_parameters())
    memory = memory.masked_fill(~mask[..., None], 0)  # what stands at padding means nothing
    table = {} if learned else {"positions.table": model.positions(None, 8)}
    return {"name": name, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "source_vocabulary": SOURCE,
            "target_vocabulary": logits.shape[2], "norm_first": norm_first, "activation": activation,
            "learned_positions": learned, "share_embeddings": shared, "tie_output": tied,
            "parameters": {key: plain(value) for key, value in (parameters | table).items()},
            "source": plain(source), "source_mask": plain(mask), "target": plain(target), "memory": plain(memory),
            "logits": plain(logits), "grad_logits": plain(upstream),
            "parameter_grads": {key: plain(value.grad) for key, value in parameters.items()}}


def cases():
    return [case("pre-norm, tied head"),
            case("post-norm, relu, learned positions, its own head", norm_first=False, activation="relu", learned=True, tied=False),
            case("pre-norm, relu, one table for all", activation="relu", shared=True)]
