"""Cases for the WordPiece tokenizer and BERT: Hugging Face's tokenizers and transformers, and the folder tests/reference/bert.

Needs `pip install transformers` beside torch. The folder is a tiny BERT with random weights in the layout of a
sentence-transformers model.
"""
import json
import os
import random
from pathlib import Path

import torch

os.environ["TOKENIZERS_PARALLELISM"] = "false"

FOLDER = Path(__file__).parent.parent / "bert"
LONGEST = 24  # tokens, in sentence_bert_config.json
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = """the a of and to in is was for that it with as on be by this are from at or an his not he she they we you i
have had but which were been their one all will would can if do no when who what there man woman girl boy horse guitar
playing plays riding eating food bread piece carrying baby two men pushed cart through wood monkey drum someone costume
set quick brown fox jump over lazy dog gradient descent converge fast problem install package system un aff able embed
trans token sentence straße strasse istanbul naive cafe resume uber eleve nino hello world mask north new york""".split()
PIECES = "ing ed s er est ly able ible tion ization ness ment aff ##".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789" + "ßøæœłđıſ" + "αβγδεζηθικλμνξοπρσςτυφχψω" + "абвгдежзийклмнопрстуфхцчшщъыьэюя" + "אבגדהוםשלמ" + "ابتسلمع"
ALONE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" + "“”‘’–—…«»¿¡§°€£±×" + "中国北京大学是日本語文一二三" + "あいうのはひらがなカタ" + "😀👩👧" + "नमसतदय" + "ไทยภษ"
JAMO = [chr(c) for c in list(range(0x1100, 0x1113)) + list(range(0x1161, 0x1176)) + list(range(0x11A8, 0x11C3))]
CASED = ["The", "Hello", "World", "É", "é", "Ü", "ü", "ñ", "naïve", "İ", "Σ"] + list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

ODD = [
    "", " ", "\t\n\r ", "Hello, world!", "HELLO WORLD", "the man is playing the guitar.", "a man is riding a horse",
    "unaffable", "Unaffable embeddings, transformers' tokenization!", "playing-plays_played", "ab##ing ## ##s",
    "ÀÉÎõü straße STRASSE Istanbul İstanbul ısırgan", "naïve café résumé Über élève niño NIÑO", "Łódź Øresund Æther œuvre",
    "ΣΊΣΥΦΟΣ", "ὈΔΥΣΣΕΎΣ ᾳ ᾼ", "Москва и Йошкар-Ола", "Ёлка ёлка", "北京大学 is in 北京。", "中国是一", "日本語の文", "ひらがなカタカナ",
    "ﾊﾝｶｸ ＡＢＣ１２３", "한국어", "각 가 힣", "नमस्ते दुनिया", "ไทยภาษา", "שָׁלוֹם", "العَرَبِيَّة",
    "[MASK] is the [MASK].", "x[MASK]y", "[CLS]a[SEP]b[PAD][UNK]", "[mask]", "[ MASK ]", "[MASK", "[[MASK]]", "[MASK][MASK]",
    "don't can't I'm we've they're he's", "o'clock ''quoted''", "a" * 100, "a" * 101, "é" * 100, "é" * 101, "e\u0301" * 51,
    "xyz" * 30, "emoji 😀😀 👩\u200d👧", "🇳🇱 flags", "zero\u200bwidth\u200djoiner", "\ufeffbyte order mark",
    "soft\u00adhyphen", "tab\tnew\nline\r\nend", "vertical\x0btab form\x0cfeed", "next\x85line", "line\u2028para\u2029end",
    "no\u00a0break thin\u2009hair\u200a ideographic\u3000space", "nar\u202frow \u205fmath \u1680ogham", "\x00null\x01\x02control\x7fdelete\x9f",
    "\ufffdreplaced \ufffd", "left\u200eright\u200fmarks\u202a\u202c", "\ue000private", "\U000f0000plane", "\u2066isolate\u2069",
    "$100 + 5% = ^_^ `x` ~ | <b>", "“quotes” ‘x’ – — … «x»", "¿qué? ¡sí!", "a§b°c€d£e±f×g", "3.14 1,234.56 -5e-3 1/2 ½ ² ① Ⅷ",
    "e-mail@example.com http://x.y/z?q=1&r=2#s", "C++ C# F# .NET x==y a->b", "snake_case camelCase SCREAMING",
    "e\u0301 e\u0323\u0302 a\u0327\u0301b", "\u0301start", ".\u0301", "中\u0301", "a\u0345", "x\u20ddy", "\u0300\u0301\u0302",
    "ﬁ ﬂ ligatures ŉ ǅ Ǆ", "Ω Å K", "\uf900\ufa0e\U0002f800", "\U00020000x\U0002a700y", "\U0002b820 \U0002b920", "々〆〇",
    "ＡＢＣ", "ₓ ᵃ ʰ", "a\u0300\u0316", "ẞ ſ", "À la carte", "A\u030angström", "fooﬀbar", "İI ıi", "ǰ J\u030c",
]


def vocabulary():
    entries = SPECIAL + ["[unused1]"]
    entries += sorted(set(WORDS)) + ["##" + p for p in PIECES]
    entries += list(LETTERS) + ["##" + c for c in LETTERS]
    entries += list(ALONE) + JAMO + ["##" + j for j in JAMO] + CASED
    seen = dict.fromkeys(entries)
    return list(seen)


def strings():
    random.seed(20240601)
    result = list(ODD)
    plain = [w for w in vocabulary() if not w.startswith(("##", "["))]
    scalars = [c for c in list(range(0x20, 0x180)) + list(range(0x300, 0x330)) + list(range(0x391, 0x3CA)) + list(range(0x410, 0x450))]
    for i in range(110):
        if i % 3 == 0:
            text = " ".join(random.choice(plain) for _ in range(random.randrange(1, 12)))
        elif i % 3 == 1:
            text = "".join(random.choice(plain) + random.choice(["", "", "s", "ing", " ", ", ", ". "]) for _ in range(random.randrange(1, 10)))
        else:
            text = "".join(chr(random.choice(scalars)) for _ in range(random.randrange(1, 20)))
        result.append(text.title() if i % 5 == 0 else text)
    return result


def write_vocabulary():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "vocab.txt").write_text("".join(piece + "\n" for piece in vocabulary()), encoding="utf-8")


def word_pieces():
    import tokenizers
    import transformers
    from transformers.models.bert.tokenization_bert import BertTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    write_vocabulary()
    ids = {piece: i for i, piece in enumerate(vocabulary())}
    texts = strings()
    cases = []
    for name, options in {
        "uncased": {},
        "cased": {"do_lower_case": False},
        "cased, accents stripped": {"do_lower_case": False, "strip_accents": True},
        "uncased, accents kept": {"do_lower_case": True, "strip_accents": False},
        "ideographs not split": {"tokenize_chinese_chars": False},
    }.items():
        fast = BertTokenizer(vocab=dict(ids), **options)
        slow = BertTokenizerLegacy(str(FOLDER / "vocab.txt"), **options)
        case = {"name": name, "tokenizers": tokenizers.__version__, "transformers": transformers.__version__, "options": options, "texts": []}
        for text in texts:
            entry = {"text": text, "ids": fast(text)["input_ids"]}
            if name == "uncased":
                entry["decoded"] = fast.decode(entry["ids"], skip_special_tokens=True)
            if slow(text)["input_ids"] != entry["ids"]:
                entry["python"] = slow(text)["input_ids"]  # transformers' older tokenizer, written in Python
            case["texts"].append(entry)
        cases.append(case)
    fast = BertTokenizer(vocab=dict(ids))
    random.seed(3)
    pairs = []
    for i in range(40):
        first, second = random.choice(texts), random.choice(texts)
        longest = random.choice([3, 4, 5, 8, 9, 12, 200])
        encoded = fast(first, second, truncation=True, max_length=longest)
        pairs.append({"first": first, "second": second, "longest": longest, "ids": encoded["input_ids"],
                      "types": encoded["token_type_ids"]})
    cases.append({"name": "pairs", "pairs": pairs})
    some = texts[3:9]
    batch = fast(some, padding=True, truncation=True, max_length=7)
    cases.append({"name": "batch", "longest": 7, "texts": some, "ids": batch["input_ids"], "mask": batch["attention_mask"]})
    return cases


CONFIG = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32,
              type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12, pad_token_id=0)
SENTENCES = ["The man is playing the guitar.", "A woman is riding a horse", "", "naïve café 北京", "monkey " * 40]


def write_folder(model):
    from safetensors.torch import save_file

    state = {name: tensor.to(torch.float32).contiguous() for name, tensor in model.state_dict().items()}
    state.setdefault("embeddings.position_ids", torch.arange(CONFIG["max_position_embeddings"]).unsqueeze(0))
    save_file(state, FOLDER / "model.safetensors", {"format": "pt"})

    def put(name, value):
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n")

    put("config.json", {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": len(vocabulary()), **CONFIG,
                        "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "position_embedding_type": "absolute"})
    put("modules.json", [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                         for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])])
    put("1_Pooling/config.json", {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
                                  "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})
    put("sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    put("tokenizer_config.json", {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True,
                                  "tokenizer_class": "BertTokenizer", "model_max_length": 512})


def models():
    from transformers import BertConfig, BertModel
    from transformers.models.bert.tokenization_bert import BertTokenizer

    from .common import Numbers, plain

    write_vocabulary()
    numbers = Numbers("bert", "tiny")
    tokenizer = BertTokenizer(vocab={piece: i for i, piece in enumerate(vocabulary())})
    cases = []
    weights = None
    for name, changes in {"gelu": {}, "gelu_new": {"hidden_act": "gelu_new"}, "relu": {"hidden_act": "relu"},
                          "silu": {"hidden_act": "silu"}, "eps": {"layer_norm_eps": 0.1}}.items():
        config = BertConfig(vocab_size=len(vocabulary()), **{**CONFIG, **changes}, attn_implementation="eager")
        model = BertModel(config).double().eval()
        if weights is None:
            with torch.no_grad():
                for parameter_name, p in model.named_parameters():
                    around = 1.0 if parameter_name.endswith("LayerNorm.weight") else 0.0
                    p.copy_(around + numbers.normal(*p.shape, scale=0.25, grad=False))
            weights = model.state_dict()
            write_folder(model)
        model.load_state_dict(weights)
        encoded = tokenizer(SENTENCES[:2], ["a quick brown fox", "the dog"], padding=True, return_tensors="pt")
        output = model(**encoded)
        upstream = numbers.normal(*output[0].shape, grad=False) * encoded["attention_mask"].unsqueeze(-1)
        model.zero_grad()
        (output[0] * upstream).sum().backward()
        gradient = model.encoder.layer[0].attention.self.query.weight.grad
        cases.append({"name": name, "changes": changes, "ids": plain(encoded["input_ids"]), "mask": plain(encoded["attention_mask"]),
                      "types": plain(encoded["token_type_ids"]), "hidden": plain(output[0]), "pooled": plain(output[1]),
                      "grad_output": plain(upstream), "query_grad": plain(gradient)})
    # As sentence-transformers does it, one sentence at a time.
    model = BertModel(BertConfig(vocab_size=len(vocabulary()), **CONFIG)).double().eval()
    model.load_state_dict(weights)
    vectors = {"mean": [], "cls": [], "max": []}
    for sentence in SENTENCES:
        encoded = tokenizer([sentence], truncation=True, max_length=LONGEST, return_tensors="pt")
        hidden = model(**encoded)[0]
        mask = encoded["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        vectors["mean"].append((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9))
        vectors["cls"].append(hidden[:, 0])
        vectors["max"].append(hidden.masked_fill(mask == 0, -1e9).max(1)[0])
    cases.append({"name": "sentences", "texts": SENTENCES, "truncated": 1,
                  **{key: plain(torch.nn.functional.normalize(torch.cat(value), dim=1)) for key, value in vectors.items()},
                  "mean, not normalised": plain(torch.cat(vectors["mean"]))})
    return cases
