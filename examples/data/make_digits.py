#!/usr/bin/env python3
"""Writes digits.txt from the handwritten digits that scikit-learn carries.

    pip install scikit-learn
    python3 examples/data/make_digits.py

See README.md for what the file holds and where the pictures come from.
"""
from pathlib import Path

from sklearn.datasets import load_digits

SHADES = "0123456789ABCDEFG"  # 0 (paper) to 16 (ink)

pictures, labels = load_digits(return_X_y=True)
lines = [f"{label} {''.join(SHADES[int(shade)] for shade in picture)}\n" for picture, label in zip(pictures, labels)]
path = Path(__file__).with_name("digits.txt")
path.write_text("".join(lines))
print(f"{path.name}: {len(lines)} pictures, {path.stat().st_size} bytes")
