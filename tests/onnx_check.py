#!/usr/bin/env python3
"""Runs ONNX files that Regard wrote in onnxruntime and compares with what Regard computed.

    pip install onnx onnxruntime safetensors numpy
    REGARD_ONNX_FOLDER=/tmp/onnx build/release/tests/regard_tests "onnx*"     # an existing folder
    python3 tests/onnx_check.py /tmp/onnx
    python3 tests/onnx_check.py model.onnx                                   # with model.safetensors beside it

Beside each NAME.onnx lies NAME.safetensors with tensors `input.X` and `output.Y`. Prints the largest difference of each
output, relative to the largest number in it; exit status 1 where one is above 1e-5.
"""
import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file


def check(path):
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    sample = load_file(path.with_suffix(".safetensors"))
    inputs = {key[len("input."):]: value for key, value in sample.items() if key.startswith("input.")}
    expected = {key[len("output."):]: value for key, value in sample.items() if key.startswith("output.")}
    outputs = dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs)))
    assert outputs.keys() == expected.keys(), f"{path}: outputs {list(outputs)}, expected {list(expected)}"
    worst = 0.0
    for name, want in expected.items():
        assert outputs[name].shape == want.shape, f"{path}: {name} {outputs[name].shape}, expected {want.shape}"
        difference = numpy.abs(outputs[name].astype(numpy.float64) - want.astype(numpy.float64)).max(initial=0)
        relative = difference / max(1.0, numpy.abs(want).max(initial=0))
        worst = max(worst, relative)
        print(f"{path.stem:28} {name:20} {str(list(want.shape)):18} {relative:.2e}")
    return worst


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    given = Path(sys.argv[1])
    paths = sorted(given.glob("*.onnx")) if given.is_dir() else [given]
    if not paths:
        print(f"{given}: no .onnx file there", file=sys.stderr)
        return 2
    worst = max(check(path) for path in paths)
    print(f"{len(paths)} files, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}: largest difference {worst:.2e}")
    return 0 if worst <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
