#!/usr/bin/env python3
"""Writes the reference values that Regard's tests compare with, as computed by PyTorch on the CPU.

    pip install torch numpy transformers
    pip install torch numpy tokenizers transformers
    python3 tests/reference/generate.py            # every file
    python3 tests/reference/generate.py ops_nn     # only these

The JSON files beside this script are committed, so the tests themselves need neither Python nor PyTorch.
Run this again after adding a case, or to move to a newer PyTorch. Each file records PyTorch's version and
the seed. A case draws its numbers from a generator keyed by (seed, operation, name), so adding one leaves
the others as they were; a run on the same machine writes the same bytes.

Numbers are written in the shortest form that reads back to the same double (at most 17 digits); inputs are
multiples of 1/1024, which single precision holds exactly. Infinities and NaN are the strings "inf", "-inf" and
"nan". Attention masks carry Regard's polarity: true may attend. Where Regard's meaning differs from PyTorch's
on purpose, the case either stays out or holds Regard's value and says so in its "note".
"""
import sys
from pathlib import Path

import torch

from generator import (
    attention,
    bert,
    byte_pairs,
    common,
    gpt2,
    encoder_decoder,
    loss_curve,
    ops,
    optimizers,
    positions,
    torch_models,
    transformer,
    vision,
)

FILES = {
    "ops_elementwise": ops.elementwise,
    "ops_reductions": ops.reductions,
    "ops_shape": ops.shapes,
    "ops_index": ops.indexing,
    "ops_matmul": ops.products,
    "ops_nn": ops.neural,
    "attention": attention.cases,
    "transformer": transformer.cases,
    "encoder_decoder": encoder_decoder.cases,
    "positions": positions.cases,
    "torch_models": torch_models.cases,
    "optimizers": optimizers.optimizers,
    "schedules": optimizers.schedules,
    "loss_curve": loss_curve.cases,
    "vision": vision.cases,
    "gpt2": gpt2.cases,  # by Hugging Face's transformers
    "byte_pairs": byte_pairs.cases,  # by Hugging Face's tokenizers
    "word_piece": bert.word_pieces,
    "bert": bert.models,
}


def main() -> int:
    names = sys.argv[1:] or list(FILES)
    unknown = [name for name in names if name not in FILES]
    if unknown:
        print(f"no such file: {', '.join(unknown)}; choose from {', '.join(FILES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    for name in names:
        path = Path(__file__).parent / f"{name}.json"
        cases = FILES[name]()
        common.write(path, cases)
        print(f"{path.name}: {len(cases)} cases, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
