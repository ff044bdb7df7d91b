"""A byte-pair encoding trained by Hugging Face's tokenizers on a small text, and what it makes of odd ones."""
import random

from .common import SEED

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "It's what we'll do; they've said you're right, I'm sure he'd go.",
    "Attention is all you need, isn't it?", "  Indented lines\n\tand tabs\n\n\nand  double  spaces ",
    "In 2017, 3.14159 of 1,000,000 = 0.000314159%", "Crème brûlée, naïve façade, Ærøskøbing, Straße, ÅNGSTRÖM",
    "Привет, мир! Как дела? Привет снова.", "今日は世界。東京は日本の首都です。", "한국어 문장도 있습니다.",
    "emoji: 🙂🙃 👩‍👩‍👧 🇩🇪", "for (int i = 0; i < n; ++i) { x[i] += y[i]; }", "https://example.org/a?b=c&d=e#f",
    "مرحبا بالعالم", "नमस्ते दुनिया", "aaaaaaaa aaaa aaa aa a", "'quoted' \"text\" -- and—dashes…", "½ ² Ⅷ ٣ ৪",
]
ODD = [
    "", " ", "  ", "\n", " \n ", "a", " a", "  a", "a ", "a  b", "\u00a0x\u3000y\u2028z", "don't DON'T we'll'sve 's 'S",
    "x\u0301y\u0308", "tokens12and34", "🙂🙂", "\ud7ff\ue000\U0010ffff", "\x00\x01\x7f\x85", "zzz\r\n\r\nzzz", "Ġ Ā ĉ",
    "<|endoftext|>", "the the  the\tthe\nthe", "ǅ ʰ ª 〇 ㊀ ᠎x", "aaaaaaaaaaaaaaaaaaaaaaaaa",
]


def cases():
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    order = random.Random(SEED)
    text = "\n".join(order.choice(SENTENCES) for _ in range(90)) + "\n"
    result = []
    for vocabulary, frequency in ((256, 2), (300, 2), (640, 2), (2000, 3)):
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator([text], trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=frequency, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        model = __import__("json").loads(tokenizer.to_str())["model"]
        by_id = sorted(model["vocab"], key=model["vocab"].get)
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        result.append({
            "tokenizers": tokenizers.__version__, "vocabulary": vocabulary, "min_frequency": frequency,
            "text": text if not result else "", "tokens": by_id, "merges": merges,
            "encoded": [[t, tokenizer.encode(t).ids] for t in ODD + SENTENCES],
        })
    return result
