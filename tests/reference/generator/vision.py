"""Cases for pictures: convolution patches, pooling, and a whole vision transformer.

The transformers are Hugging Face's ViTForImageClassification; its parameters are recorded under the names of its files
(`save_pretrained`), which are not those of its modules.
"""
import tempfile
from pathlib import Path

import torch

from .common import Numbers, plain


def recorded(kind, name, inputs, parameters, output, numbers, **options):
    """One case with output and gradients of `inputs` and `parameters` (a dict of leaves)."""
    upstream = numbers.normal(*output.shape, grad=False)
    leaves = list(inputs) + list(parameters.values())
    found = torch.autograd.grad(output, leaves, upstream)
    return {"kind": kind, "name": name, **options, "inputs": [plain(i) for i in inputs],
            "parameters": {k: plain(v) for k, v in parameters.items()}, "output": plain(output),
            "grad_output": plain(upstream), "input_grads": [plain(g) for g in found[: len(inputs)]],
            "parameter_grads": {k: plain(g) for k, g in zip(parameters, found[len(inputs) :])}}


def patches(name, channels, patch, width, height, across, bias=True):
    numbers = Numbers("patches", name)
    images = numbers.normal(2, channels, height, across)
    parameters = {"weight": numbers.normal(width, channels, patch, patch)}
    if bias:
        parameters["bias"] = numbers.normal(width)
    maps = torch.nn.functional.conv2d(images, parameters["weight"], parameters.get("bias"), stride=patch)
    return recorded("patches", name, [images], parameters, maps.flatten(2).transpose(1, 2), numbers, channels=channels,
                    patch=patch, width=width)


def pool(name, kind, kernel, stride, height, across, ties=False):
    numbers = Numbers("pool", name)
    images = numbers.normal(2, 2, height, across)
    if ties:
        images = (images.detach() * 2).round().requires_grad_()
    function = torch.nn.functional.avg_pool2d if kind == "average" else torch.nn.functional.max_pool2d
    return recorded(kind, name, [images], {}, function(images, kernel, stride), numbers, kernel=kernel, stride=stride)


def attention(module, query, key, value, mask, scaling=None, dropout=0.0, **_):
    """Hugging Face's own attention that returns weights computes their softmax in single precision."""
    weights = torch.softmax(query @ key.transpose(2, 3) * scaling, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def transformer(name, hidden_act="gelu", **config):
    from safetensors.torch import load_file  # here, so that the other files need torch and numpy alone
    from transformers import AttentionInterface, ViTConfig, ViTForImageClassification, __version__

    AttentionInterface.register("double", attention)
    numbers = Numbers("vision_transformer", name)
    model = ViTForImageClassification(ViTConfig(hidden_act=hidden_act, attn_implementation="double", **config)).double().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            around = 1.0 if "layernorm" in key and key.endswith("weight") else 0.0
            value.copy_(numbers.normal(*value.shape, scale=0.4, grad=False) + around)
    images = numbers.normal(2, config["num_channels"], config["image_size"], config["image_size"])
    output = model(images, output_attentions=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(Path(folder) / "model.safetensors")
    return {"kind": "transformer", "name": name, "config": {**config, "hidden_act": hidden_act}, "transformers": __version__,
            "inputs": [plain(images)], "parameters": {k: plain(v) for k, v in stored.items()},
            "output": plain(output.logits), "weights": [plain(w) for w in output.attentions]}


def cases():
    return [
        patches("one channel", channels=1, patch=2, width=3, height=4, across=6),
        patches("three channels, no bias", channels=3, patch=3, width=2, height=3, across=6, bias=False),
        patches("patches of one pixel", channels=2, patch=1, width=2, height=2, across=3),
        pool("average, side by side", "average", 2, 2, 4, 6),
        pool("average, overlapping, with a rest", "average", 3, 2, 6, 8),
        pool("largest, side by side", "largest", 2, 2, 4, 6),
        pool("largest, overlapping, with a rest", "largest", 3, 2, 6, 8),
        pool("largest, with ties", "largest", 2, 1, 4, 4, ties=True),
        transformer("small", hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=8,
                    patch_size=4, num_channels=2, num_labels=3, layer_norm_eps=1e-12),
        transformer("tanh, one channel", hidden_act="gelu_pytorch_tanh", hidden_size=6, num_hidden_layers=1,
                    num_attention_heads=3, intermediate_size=10, image_size=6, patch_size=2, num_channels=1, num_labels=4,
                    layer_norm_eps=1e-6),
    ]
