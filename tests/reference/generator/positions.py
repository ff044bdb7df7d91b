"""Cases for rotary and ALiBi positions and for fewer heads of keys than of queries, by PyTorch and transformers."""
import math

import torch
import torch.nn.functional as F

from .common import Cases, Numbers, plain


def pairs_turned(x, offset=0, base=10000.0):
    """Su et al., 2021, as their paper has it: neighbours are a complex number, turned by its position's angle."""
    length, width = x.shape[-2:]
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(offset, offset + length, dtype=torch.float64)[:, None] * frequency
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], width // 2, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).reshape(x.shape)


def halves_turned(x, offset=0, base=10000.0):
    """The same of element j and element j + width / 2, with the functions of transformers, whose angles are an f64's here."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    length, width = x.shape[-2:]
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(offset, offset + length, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)[None]
    return apply_rotary_pos_emb(x, x, angle.cos(), angle.sin())[0]


def slopes(heads):
    """Press et al.'s own rule, get_slopes() of attention_with_linear_biases."""

    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return power_of_2(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return power_of_2(closest) + slopes(2 * closest)[0::2][: heads - closest]


def alibi(heads, queries, keys):
    distance = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs().double()
    return -torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None] * distance


def llama(name, heads, key_heads, base):
    """transformers' LlamaAttention, causal: rotary positions and grouped heads in one layer. Its angles are f32."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    width, length = 4 * heads, 5
    config = LlamaConfig(hidden_size=width, num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=64,
                         rope_parameters={"rope_type": "default", "rope_theta": base}, attention_bias=False)
    config._attn_implementation = "eager"
    module = LlamaAttention(config, 0).double()
    numbers = Numbers("positions", name)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(numbers.normal(*parameter.shape, scale=0.3, grad=False))
    x = numbers.normal(2, length, width)
    places = LlamaRotaryEmbedding(config)(x, torch.arange(length)[None])
    mask = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)[None, None]
    output = module(x, places, mask)[0]
    upstream = numbers.normal(*output.shape, grad=False)
    (output * upstream).sum().backward()
    names = {"q_proj.weight": "query.weight", "k_proj.weight": "key.weight", "v_proj.weight": "value.weight",
             "o_proj.weight": "output.weight"}
    return {"op": "llama_attention", "name": name, "heads": heads, "key_value_heads": key_heads, "base": base, "inputs": [plain(x)],
            "parameters": {names[k]: plain(p) for k, p in module.named_parameters()}, "outputs": [plain(output)],
            "grad_outputs": [plain(upstream)], "grads": [plain(x.grad)],
            "parameter_grads": {names[k]: plain(p.grad) for k, p in module.named_parameters()}}


def cases():
    result = Cases()
    for name, function, interleaved in (("halves", halves_turned, False), ("pairs", pairs_turned, True)):
        for offset, base in ((0, 10000.0), (7, 10000.0), (300, 500.0)):
            result.add("rotary", f"{name}, offset {offset}, base {base:g}", lambda x: function(x, offset, base),
                       lambda n: [n.normal(1, 2, 4, 6)], offset=offset, base=base, interleaved=interleaved)
    for heads in (1, 2, 3, 5, 6, 8, 12, 16, 20):
        result.append({"op": "alibi_slopes", "name": f"{heads} heads", "heads": heads,
                       "outputs": [plain(torch.tensor(slopes(heads), dtype=torch.float64))]})
    shapes = {"grouped": (2, 4, 2, 3, 4), "one head of keys": (2, 3, 1, 2, 4), "a single query": (1, 4, 2, 1, 5)}
    for name, (batch, heads, key_heads, queries, keys) in shapes.items():
        draw = lambda n: [n.normal(batch, heads, queries, 3), n.normal(batch, key_heads, keys, 3), n.normal(batch, key_heads, keys, 2)]
        lower = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        for end, mask in (("", None), (", causal", lower)):
            result.add("attention", name + end, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
                       draw, causal=mask is not None, alibi=False)
        bias = alibi(heads, queries, keys)[None]
        for end, mask in ((", alibi", bias), (", alibi and causal", bias.masked_fill(~lower, -math.inf))):
            result.add("attention", name + end, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
                       draw, causal="causal" in end, alibi=True)
    result.append(llama("two heads for each of keys", 4, 2, 10000.0))
    result.append(llama("one head of keys, another base", 2, 1, 100.0))
    return result
