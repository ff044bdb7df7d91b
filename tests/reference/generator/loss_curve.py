"""Ten training steps of a small causal language model, from stored weights on stored batches."""
import torch
import torch.nn.functional as F

from .attention import regard_parameters
from .common import Numbers, plain
from .transformer import named

WIDTH, HEADS, HIDDEN, VOCABULARY, BATCH, LENGTH, BLOCKS, STEPS = 16, 2, 32, 11, 4, 8, 2, 10
LR, WEIGHT_DECAY, CLIP = 1e-3, 0.01, 1.0


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        kind = {"dtype": dtype}
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH, **kind)
        self.positions = torch.nn.Embedding(LENGTH, WIDTH, **kind)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=True, **kind)
            for _ in range(BLOCKS))
        self.norm = torch.nn.LayerNorm(WIDTH, **kind)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, **kind)

    def forward(self, ids):
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.tokens(ids) + self.positions(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))

    def regard(self, reader):
        result = {}
        for name in ("tokens", "positions", "norm", "head"):
            for key, value in getattr(self, name).named_parameters():
                result[f"{name}.{key}"] = value.detach() if reader is regard_parameters else value.grad
        for i, block in enumerate(self.blocks):
            result.update({f"blocks.{i}.{k}": v for k, v in named(block, reader).items()})
        return result


def draw(model, numbers):
    """Small weights, norms near one: multiples of 1/1024, so that both precisions begin with the same model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = numbers.normal(*parameter.shape, scale=0.2, grad=False)
            parameter.copy_(value + 1 if "norm" in name and name.endswith("weight") else value)


def train(dtype, batches):
    model = Model(dtype)
    draw(model, Numbers("loss_curve", "weights"))
    start = {k: plain(v.double()) for k, v in model.regard(regard_parameters).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    losses, norms = [], []
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return start, losses, norms, {k: v.double().norm().item() for k, v in model.regard(regard_parameters).items()}


def cases():
    numbers = Numbers("loss_curve", "batches")
    # Counting upwards by a step of one to three, modulo the vocabulary: something to learn.
    batches = []
    for _ in range(STEPS):
        ids = (numbers.integers(0, VOCABULARY, BATCH, 1) + numbers.integers(1, 4, BATCH, 1) * torch.arange(LENGTH + 1)) % VOCABULARY
        batches.append((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
    start, f64, f64_norms, lengths = train(torch.float64, batches)
    _, f32, f32_norms, _ = train(torch.float32, batches)
    return [{"name": "causal language model", "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "vocabulary": VOCABULARY,
             "length": LENGTH, "blocks": BLOCKS, "lr": LR, "weight_decay": WEIGHT_DECAY, "clip": CLIP, "parameters": start,
             "inputs": [plain(i) for i, _ in batches], "targets": [plain(t) for _, t in batches],
             "losses": {"f64": f64, "f32": f32}, "grad_norms": {"f64": f64_norms, "f32": f32_norms},
             "parameter_norms_after": lengths}]
