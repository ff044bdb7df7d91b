"""Tiny random GPT-2 models as transformers saves them, in folders of their own, and the logits they give."""
import json
import shutil
from pathlib import Path

import torch

from .common import Numbers, plain

FOLDER = Path(__file__).parent.parent / "gpt2"
SHAPE = {"vocab_size": 13, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 2, "bos_token_id": None, "eos_token_id": None}
# Case: what differs from GPT-2's configuration, the dtype of the file, and the size of its largest part.
MODELS = {
    "tied": ({}, torch.float32, "1GB"),
    "untied": ({"tie_word_embeddings": False, "activation_function": "relu", "n_inner": 12, "layer_norm_epsilon": 1e-3},
               torch.float16, "2KB"),
}


def cases():
    import transformers

    result = []
    for name, (options, dtype, part) in MODELS.items():
        numbers = Numbers("gpt2", name)
        config = transformers.GPT2Config(**SHAPE, **options)
        model = transformers.GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(numbers.normal(*parameter.shape, scale=0.4, grad=False))
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(dtype).save_pretrained(folder, max_shard_size=part)
        (folder / "generation_config.json").unlink(missing_ok=True)
        saved = json.loads((folder / "config.json").read_text())
        assert saved["n_embd"] == SHAPE["n_embd"]
        model = model.double()
        ids = numbers.integers(0, SHAPE["vocab_size"], 3, SHAPE["n_positions"])
        with torch.no_grad():
            logits = model(ids).logits
        result.append({"name": name, "transformers": transformers.__version__, "ids": plain(ids), "logits": plain(logits)})
    return result
