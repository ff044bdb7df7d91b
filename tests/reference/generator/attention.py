"""Cases for multi-head attention as a layer: torch.nn.MultiheadAttention under Regard's parameter names."""
import math

import torch

from .common import Numbers, gradients, plain


def regard_parameters(module):
    """PyTorch's attention parameters under Regard's names: query, key, value and output, each weight and bias.

    The values are leaves cut from PyTorch's joined projection; `restore` puts them back for a run."""
    width = module.embed_dim
    result = {}
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.detach().chunk(3)
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    for i, name in enumerate(("query", "key", "value")):
        result[f"{name}.weight"] = weights[i].detach().clone()
        if module.in_proj_bias is not None:
            result[f"{name}.bias"] = module.in_proj_bias.detach()[i * width:(i + 1) * width].clone()
    result["output.weight"] = module.out_proj.weight.detach().clone()
    if module.out_proj.bias is not None:
        result["output.bias"] = module.out_proj.bias.detach().clone()
    return result


def regard_gradients(module):
    """The parameters' .grad under the same names."""
    width = module.embed_dim
    result = {}
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.grad.chunk(3)
    else:
        weights = [module.q_proj_weight.grad, module.k_proj_weight.grad, module.v_proj_weight.grad]
    for i, name in enumerate(("query", "key", "value")):
        result[f"{name}.weight"] = weights[i]
        if module.in_proj_bias is not None:
            result[f"{name}.bias"] = module.in_proj_bias.grad[i * width:(i + 1) * width]
    result["output.weight"] = module.out_proj.weight.grad
    if module.out_proj.bias is not None:
        result["output.bias"] = module.out_proj.bias.grad
    return result


def draw(module, numbers, scale=0.4):
    """Every parameter anew from the case's own numbers: biases and norms too, which PyTorch starts at 0 and 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(numbers.normal(*parameter.shape, scale=scale, grad=False))


def blocked(n, heads, queries, keys, mask, key_mask, causal):
    """One float mask [N*H, L, S] for PyTorch, -inf where Regard's masks forbid."""
    total = torch.zeros(n, heads, queries, keys, dtype=torch.float64)
    if mask is not None:
        total = total + (torch.where(mask, 0.0, -math.inf) if mask.dtype == torch.bool else mask)
    if key_mask is not None:
        total = total.masked_fill(~key_mask[:, None, None, :], -math.inf)
    if causal:
        total = total.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), -math.inf)
    return total.reshape(n * heads, queries, keys)


def case(name, cross=False, bias=True, kdim=None, vdim=None, queries=3, keys=5, heads=2, mask=None, key_mask=False,
         causal=False):
    numbers = Numbers("attention", name)
    batch, width = 2, 4 if heads < 4 else 8
    module = torch.nn.MultiheadAttention(width, heads, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64)
    draw(module, numbers)
    query = numbers.normal(batch, queries, width)
    key = numbers.normal(batch, keys, kdim or width) if cross else query
    value = numbers.normal(batch, keys, vdim or width) if cross else query
    if not cross:
        keys = queries
    some = lambda *shape: numbers.booleans(*shape, p=0.5) | (torch.arange(keys) == 0)  # the first key stays
    masks = {None: lambda: None, "bool": lambda: some(queries, keys), "bool a batch": lambda: some(batch, 1, queries, keys),
             "bool a head": lambda: some(batch, heads, queries, keys), "float": lambda: numbers.normal(queries, keys, grad=False),
             "float a head": lambda: numbers.normal(1, heads, queries, keys, grad=False)}
    mask = masks[mask]()
    padding = torch.arange(keys)[None] < torch.tensor([[keys], [keys - 2]]) if key_mask else None

    total = blocked(batch, heads, queries, keys, mask, padding, causal)
    output, weights = module(query, key, value, attn_mask=total, need_weights=True, average_attn_weights=False)
    again, _ = module(query, key, value, attn_mask=total, need_weights=False)
    assert torch.allclose(output, again, rtol=0, atol=1e-14)
    upstream = numbers.normal(*output.shape, grad=False)
    inputs = [query, key, value] if cross else [query]
    (output * upstream).sum().backward()
    result = {"name": name, "width": width, "heads": heads, "bias": bias, "causal": causal}
    if kdim or vdim:
        result.update(kdim=kdim or width, vdim=vdim or width)
    if mask is not None:
        result["mask"] = plain(mask)
    if padding is not None:
        result["key_mask"] = plain(padding)
    # One input is self-attention; three are query, key and value.
    result.update(inputs=[plain(i) for i in inputs], parameters={k: plain(v) for k, v in regard_parameters(module).items()},
                  output=plain(output), weights=plain(weights), grad_output=plain(upstream),
                  input_grads=[plain(i.grad) for i in inputs],
                  parameter_grads={k: plain(v) for k, v in regard_gradients(module).items()})
    return result


def cases():
    result = []
    for cross in (False, True):
        kind = "cross" if cross else "self"
        for bias in (True, False):
            end = "" if bias else ", no bias"
            result.append(case(f"{kind}{end}", cross, bias))
        for mask in ("bool", "bool a batch", "bool a head", "float", "float a head"):
            result.append(case(f"{kind}, {mask} mask", cross, mask=mask))
        result.append(case(f"{kind}, causal", cross, causal=True))
        result.append(case(f"{kind}, key mask", cross, queries=4, key_mask=True))
        result.append(case(f"{kind}, causal and key mask", cross, queries=4, key_mask=True, causal=True))
        result.append(case(f"{kind}, bool mask and key mask", cross, queries=4, mask="bool", key_mask=True))
        result.append(case(f"{kind}, float mask and key mask", cross, queries=4, mask="float", key_mask=True))
        result.append(case(f"{kind}, float mask, key mask and causal, no bias", cross, False, queries=4, mask="float",
                           key_mask=True, causal=True))
        result.append(case(f"{kind}, bool mask a head, key mask and causal", cross, queries=4, mask="bool a head", key_mask=True,
                           causal=True))
        result.append(case(f"{kind}, one head", cross, heads=1))
        result.append(case(f"{kind}, four heads", cross, heads=4, queries=2, keys=3))
    result.append(case("cross, key and value of other widths", True, kdim=3, vdim=5))
    result.append(case("cross, key and value of other widths, no bias, key mask", True, False, kdim=3, vdim=5, key_mask=True))
    result.append(case("cross, one query, causal", True, queries=1, causal=True))
    return result
