"""The text of the character model: the licences that Debian ships, joined."""
import random
import struct
from pathlib import Path

licences = Path("/usr/share/common-licenses")
batch, length = 12, 64


def make(folder, steps):
    """Writes the text, a byte a character's number, and where each sequence of each batch starts. Returns the number of
    different characters and the two paths; None without the licences."""
    files = sorted(f for f in licences.glob("*") if f.is_file() and not f.is_symlink()) if licences.is_dir() else []
    text = "".join(f.read_text("utf-8", "replace") for f in files)
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    if len(text) < 10000 or len(alphabet) > 256:
        return None
    text_path, starts_path = folder / "characters.text", folder / "characters.starts"
    text_path.write_bytes(bytes(alphabet[character] for character in text))
    numbers = random.Random(1)
    starts = [numbers.randrange(len(text) - length - 1) for _ in range(steps * batch)]
    starts_path.write_bytes(struct.pack(f"<{len(starts)}q", *starts))
    return len(alphabet), str(text_path), str(starts_path)
