"""Cases for reading PyTorch's state dicts: modules with attention inside, their parameters and gradients under PyTorch's names."""
import torch

from .attention import draw
from .common import Numbers, plain

WIDTH, HEADS, HIDDEN, BATCH = 4, 2, 6, 2


class Model(torch.nn.Module):
    """Modules with attention among others, nested: what from_torch() finds by the layers' paths."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, WIDTH)
        self.blocks = torch.nn.ModuleList(
            [torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)])
        self.pool = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x[:, :1], x, x, need_weights=False)[0])


def case(name, kind, module, make_inputs, call, **fields):
    numbers = Numbers("torch_models", name)
    module = module.double()
    draw(module, numbers, scale=0.5)
    inputs = make_inputs(numbers)
    output = call(module, *inputs)
    upstream = numbers.normal(*output.shape, grad=False)
    (output * upstream).sum().backward()
    return {"name": name, "kind": kind, **fields, "inputs": [plain(i) for i in inputs],
            "state": {k: plain(v) for k, v in module.state_dict().items()}, "output": plain(output),
            "grad_output": plain(upstream), "input_grads": [plain(i.grad) if i.requires_grad else None for i in inputs],
            "parameter_grads": {k: plain(p.grad) for k, p in module.named_parameters()}}


def cases():
    attend = lambda m, q, k, v: m(q, k, v, need_weights=False)[0]
    options = dict(dropout=0.0, batch_first=True)
    result = []
    for bias in (True, False):
        result.append(case(f"attention{'' if bias else ', no bias'}", "attention",
                           torch.nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True),
                           lambda n: [n.normal(BATCH, 3, WIDTH)], lambda m, x: attend(m, x, x, x), bias=bias))
    result.append(case("attention, widths of their own", "attention",
                       torch.nn.MultiheadAttention(WIDTH, HEADS, kdim=3, vdim=5, batch_first=True),
                       lambda n: [n.normal(BATCH, 2, WIDTH), n.normal(BATCH, 3, 3), n.normal(BATCH, 3, 5)], attend, bias=True,
                       kdim=3, vdim=5))
    for norm_first in (True, False):
        end = "pre-norm" if norm_first else "post-norm"
        result.append(case(f"encoder layer, {end}", "encoder layer",
                           torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, norm_first=norm_first, **options),
                           lambda n: [n.normal(BATCH, 3, WIDTH)], lambda m, x: m(x), norm_first=norm_first))
        result.append(case(f"decoder layer, {end}", "decoder layer",
                           torch.nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, norm_first=norm_first, **options),
                           lambda n: [n.normal(BATCH, 3, WIDTH), n.normal(BATCH, 2, WIDTH)], lambda m, x, memory: m(x, memory),
                           norm_first=norm_first))
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, norm_first=True, **options)
    result.append(case("encoder", "encoder",
                       torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(WIDTH), enable_nested_tensor=False),
                       lambda n: [n.normal(BATCH, 3, WIDTH)], lambda m, x: m(x)))
    layer = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, norm_first=False, **options)
    result.append(case("decoder", "decoder", torch.nn.TransformerDecoder(layer, 2, torch.nn.LayerNorm(WIDTH)),
                       lambda n: [n.normal(BATCH, 3, WIDTH), n.normal(BATCH, 2, WIDTH)], lambda m, x, memory: m(x, memory)))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
    result.append(case("transformer, causal", "transformer", torch.nn.Transformer(WIDTH, HEADS, 1, 2, HIDDEN, **options),
                       lambda n: [n.normal(BATCH, 4, WIDTH), n.normal(BATCH, 3, WIDTH)],
                       lambda m, source, target: m(source, target, tgt_mask=causal)))
    result.append(case("a model with others around", "model", Model(), lambda n: [n.integers(0, 7, BATCH, 3)], lambda m, ids: m(ids)))
    return result
