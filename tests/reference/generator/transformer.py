"""Cases for whole transformer layers: torch.nn.TransformerEncoderLayer and TransformerDecoderLayer."""
import torch

from .attention import blocked, draw, regard_gradients, regard_parameters
from .common import Numbers, plain

WIDTH, HEADS, HIDDEN, BATCH = 4, 2, 6, 2


def named(module, attention):
    """Parameters or gradients of a layer under Regard's names; `attention` is the reader for attention's."""
    parts = {"attention": module.self_attn}
    if hasattr(module, "multihead_attn"):
        parts["cross_attention"] = module.multihead_attn
    result = {f"{name}.{key}": value for name, part in parts.items() for key, value in attention(part).items()}
    rest = {"norm1": "norm1", "norm2": "norm2", "norm3": "norm3", "linear1": "feed_forward.up", "linear2": "feed_forward.down"}
    for theirs, ours in rest.items():
        part = getattr(module, theirs, None)
        for kind in ("weight", "bias") if part is not None else ():
            value = getattr(part, kind)
            result[f"{ours}.{kind}"] = value.detach() if attention is regard_parameters else value.grad
    return result


def case(kind, norm_first, activation, causal=False, key_mask=False, mask=False, memory_key_mask=False):
    options = [o for o, on in (("causal", causal), ("mask", mask), ("key mask", key_mask), ("memory key mask", memory_key_mask)) if on]
    name = ", ".join([kind, "pre-norm" if norm_first else "post-norm", activation] + options)
    numbers = Numbers("transformer", name)
    make = torch.nn.TransformerEncoderLayer if kind == "encoder" else torch.nn.TransformerDecoderLayer
    module = make(WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first,
                  dtype=torch.float64)
    draw(module, numbers, scale=0.6)
    length, memory_length = 4, 3
    x = numbers.normal(BATCH, length, WIDTH)
    inputs = [x]
    if kind == "decoder":
        inputs.append(numbers.normal(BATCH, memory_length, WIDTH))
    bool_mask = numbers.booleans(length, length) | (torch.arange(length) == 0) if mask else None
    padding = torch.arange(length)[None] < torch.tensor([[length], [length - 1]]) if key_mask else None
    memory_padding = torch.arange(memory_length)[None] < torch.tensor([[memory_length - 1], [memory_length]]) if memory_key_mask else None
    total = blocked(BATCH, HEADS, length, length, bool_mask, padding, causal)
    if kind == "encoder":
        output = module(x, src_mask=total)
    else:
        memory_total = blocked(BATCH, HEADS, length, memory_length, None, memory_padding, False)
        output = module(x, inputs[1], tgt_mask=total, memory_mask=memory_total)
    upstream = numbers.normal(*output.shape, grad=False)
    (output * upstream).sum().backward()

    result = {"name": name, "kind": kind, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "norm_first": norm_first,
              "activation": activation, "causal": causal}
    for key, value in (("mask", bool_mask), ("key_mask", padding), ("memory_key_mask", memory_padding)):
        if value is not None:
            result[key] = plain(value)
    result.update(inputs=[plain(i) for i in inputs],
                  parameters={k: plain(v) for k, v in named(module, regard_parameters).items()},
                  output=plain(output), grad_output=plain(upstream), input_grads=[plain(i.grad) for i in inputs],
                  parameter_grads={k: plain(v) for k, v in named(module, regard_gradients).items()})
    return result


def cases():
    result = []
    for kind in ("encoder", "decoder"):
        for norm_first in (True, False):
            for activation in ("gelu", "relu"):
                result.append(case(kind, norm_first, activation))
                result.append(case(kind, norm_first, activation, causal=True))
            result.append(case(kind, norm_first, "gelu", key_mask=True))
            result.append(case(kind, norm_first, "gelu", causal=True, key_mask=True, mask=True,
                               memory_key_mask=kind == "decoder"))
    result.append(case("decoder", True, "gelu", memory_key_mask=True))
    return result
