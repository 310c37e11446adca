"""Compares heed's tokenizers with Hugging Face's tokenizers on random files and random texts.

    PYTHONPATH=build/release/apps/python python tests/suites/tokenizer_sweep.py [--seconds 120] [--seed 1] [--only families]

Needs the packages tokenizers (0.23) and sentencepiece. Three parts:

families    the stacks of components of public models, over small vocabularies that are trained here
random      files put together at random out of every component, with every field that it has
patterns    the expressions that public models split with, and random expressions, on long texts

Of each file: ids with and without special tokens, of single texts, pairs and batches; texts of those ids and of random ids.
What one refuses the other has to refuse. Prints what differs and exits with 1.
"""
import argparse
import base64
import contextlib
import json
import os
import random
import sys
import time

import heed
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

# ---------------------------------------------------------------------------------------------------------------- texts

SCRIPTS = [(0x61, 0x7A)] * 6 + [
    (0x41, 0x5A), (0x30, 0x39), (0xC0, 0x17F), (0x1C4, 0x1CC), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x587),
    (0x5B0, 0x5EA), (0x600, 0x6FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE01, 0xE5B), (0xF00, 0xFBC), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x13A0, 0x13FF), (0x1780, 0x17F9), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209C), (0x2100, 0x218B),
    (0x2460, 0x24FF), (0x2C00, 0x2DFF), (0x3000, 0x30FF), (0x3131, 0x318E), (0x3300, 0x33FF), (0x3400, 0x3FFF), (0x4E00, 0x9FFF),
    (0xA640, 0xA69F), (0xAC00, 0xD7A3), (0xE000, 0xE010), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFE00, 0xFE6F), (0xFF00, 0xFFEF),
    (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF), (0x20000, 0x20100),
    (0x2F800, 0x2FA1D), (0x30000, 0x30010), (0xE0100, 0xE01EF)]
ODD = ["\u200d", "\ufe0f", "\u0301", "\u0323", "\u00a0", "\u2028", "\u3000", "\t", "\r\n", "\r", "\n", "\n\n", "  ", "   ", "\x00", "\x01",
       "\x1c", "\x1f", "\x7f", "\x85", "\ufffd", "\ufeff", "\u00ad", "ﬁ", "ﬆ", "Å", "ǅ", "İ", "ı", "ß", "ẞ", "ſ", "K", "ŉ", "Σ", "ΟΔΟΣ", "½", "²", "①",
       "™", "…", "한글", "각", "e\u0301", "\u0345", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3", "'s",
       "'LL", "'re", "'ſ", "’s", "n't", " do not", " .", "##ing", "\u0e01\u0e33", "\u200b", "\u200c", "\u200f", "\u202e", "\u2581", "▁a", "\ue000",
       "\uf8ff", "\U0010ffff", "\U000f0000", "«", "—", "_", "__", "¿", "٣", "१", "Ⅷ", "㍿", "ｶﾞ", "Ａ", "０", "\u1680", "\u180e", "Ġ", "Ċ", "</w>",
       "<0x41>", "<0xE2>", "|", "||", "<pad>", "<unk>", "[UNK]", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>", "<extra>", "Extra"]


def word(rng):
    low, high = rng.choice(SCRIPTS)
    size = rng.choice((1, 2, 3, 4, 5, 7, 9, 12)) if rng.random() < 0.995 else 150
    return "".join(chr(rng.randint(low, high)) for _ in range(size))


class Texts:
    """Words that come back, so that vocabularies are learned, and odd ones between."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.words = [word(rng) for _ in range(700)]
        self.weights = [1 / (n + 3) for n in range(len(self.words))]

    def text(self, rng, count, extra=()):
        parts = []
        for one in rng.choices(self.words, self.weights, k=count):
            kind = rng.random()
            if kind < 0.2:
                one = rng.choice(ODD)
            elif kind < 0.25:
                one += rng.choice(ODD) + rng.choice(".,;:!?()[]{}'\"-/\\@#$%^&*+=~`|<>")
            elif kind < 0.3:
                one = one.capitalize() + str(rng.randint(0, 10**rng.randint(1, 9)))
            elif kind < 0.33:
                one = one.upper()
            elif kind < 0.36:
                one = word(rng)
            elif kind < 0.42 and extra:
                one = rng.choice(extra)
            elif kind < 0.43:
                one = rng.choice((" ", "\n", "\t", "a", "é", "\u3000")) * rng.randint(2, 40)
            parts.append(one)
            if rng.random() < 0.7:
                parts.append(" ")
        return "".join(parts)


# -------------------------------------------------------------------------------------------------------------- vocabularies


def trained(model, trainer, texts, pre=None, normalizer=None):
    tokenizer = Tokenizer(model)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def vocabularies(texts):
    """The model part of tokenizer.json, by kind."""
    rng = random.Random(5)
    lines = [texts.text(rng, 30) for _ in range(150)]
    few = ["".join(c for c in line if ord(c) < 0x180) for line in lines]  # Unigram wants all of its letters in the vocabulary
    quiet = {"show_progress": False}
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    marked = pre_tokenizers.Metaspace()
    result = {
        "bytes": trained(models.BPE(), trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], **quiet,
                                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), lines,
                         pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "fallback": trained(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
                            trainers.BpeTrainer(vocab_size=900, max_token_length=12, limit_alphabet=300,
                                                special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], **quiet), lines, marked),
        "characters": trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>"], limit_alphabet=250, **quiet),
                              lines, pre_tokenizers.Whitespace()),
        "suffix": trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
                          trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>"], limit_alphabet=250, end_of_word_suffix="</w>", **quiet),
                          lines, pre_tokenizers.WhitespaceSplit()),
        "prefix": trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"),
                          trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>"], limit_alphabet=250, continuing_subword_prefix="##", **quiet),
                          lines, pre_tokenizers.WhitespaceSplit()),
        "wordpiece": trained(models.WordPiece(unk_token="[UNK]"),
                             trainers.WordPieceTrainer(vocab_size=900, limit_alphabet=400, **quiet,
                                                       special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]), lines,
                             pre_tokenizers.BertPreTokenizer()),
        "wordlevel": trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=600, special_tokens=["<unk>"], **quiet),
                             lines, pre_tokenizers.Whitespace()),
        "unigram": trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=700, unk_token="<unk>", **quiet,
                                                                     special_tokens=["<pad>", "</s>", "<unk>"]), few, marked),
        "unigram-bytes": trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=900, unk_token="<unk>", **quiet,
                                                                           special_tokens=["<unk>", *byte_tokens]), few, marked),
    }
    result["unigram-bytes"]["byte_fallback"] = True
    return result


def charsmap():
    """The normalisation of sentencepiece's models (nmt_nfkc), as Precompiled has it."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["low lower lowest new newer"] * 20), model_writer=out, vocab_size=20,
                                             hard_vocab_limit=False, minloglevel=2)
    model = proto.ModelProto.FromString(out.getvalue())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def kept_vocabularies(texts, path):
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    result = vocabularies(texts)
    result["charsmap"] = charsmap()
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)
    return result


# ------------------------------------------------------------------------------------------------------------------ families

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
       r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
DEEPSEEK_CODER = ["[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\s+$"]
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
FALCON = ["[0-9][0-9][0-9]"]
PATTERNS = {"gpt2": [GPT2], "llama3": [LLAMA3], "qwen2": [QWEN2], "cl100k": [CL100K], "tekken": [TEKKEN], "o200k": [O200K], "han": [HAN], "deepseek": DEEPSEEK,
            "deepseek-coder": DEEPSEEK_CODER, "bloom": [BLOOM], "falcon": FALCON}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def byte_level(prefix_space=False, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": use_regex}


def added(content, special=True, **flags):
    return {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special, **flags}


def template(begin=(), end=()):
    def special(name, kind=0):
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(which, kind):
        return {"Sequence": {"id": which, "type_id": kind}}

    return {"type": "TemplateProcessing",
            "single": [*map(special, begin), text("A", 0), *map(special, end)],
            "pair": [*map(special, begin), text("A", 0), *map(special, end), text("B", 1), *(special(name, 1) for name in end)],
            "special_tokens": {name: {"id": name, "ids": [7], "tokens": [name]} for name in (*begin, *end)}}


def whole(model, **parts):
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model, **parts}
    return with_right_ids(file)


def with_right_ids(file):
    """Ids as the library gives them, in the added tokens and in the template."""
    vocabulary = file["model"]["vocab"]
    known = dict(vocabulary) if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
    count = len(vocabulary)
    for token in file["added_tokens"]:
        if token["content"] not in known:
            known[token["content"]] = count
            count += 1
        token["id"] = known[token["content"]]
    if file["post_processor"] and file["post_processor"]["type"] == "TemplateProcessing":
        for name, token in file["post_processor"]["special_tokens"].items():
            token["ids"] = [known.get(name, 1)]
    return file


def families(vocabulary):
    bytes_ = vocabulary["bytes"]
    to_bytes = byte_level(False, False)
    from_bytes = byte_level(True, True)
    split_bytes = lambda *patterns: sequence("pretokenizers", *map(split, patterns), to_bytes)
    chat = [added("<|im_start|>"), added("<|im_end|>"), added("<|endoftext|>")]
    yield "gpt2", whole(bytes_, added_tokens=[added("<|endoftext|>", normalized=True)], pre_tokenizer=byte_level(), post_processor=byte_level(True),
                        decoder=from_bytes)
    yield "roberta", whole(bytes_, added_tokens=[added("<s>"), added("</s>"), added("<mask>", lstrip=True)], pre_tokenizer=byte_level(True),
                           post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": True},
                           decoder=from_bytes)
    yield "bart", whole(bytes_, added_tokens=[added("<s>"), added("</s>"), added("<mask>", lstrip=True, normalized=True)], pre_tokenizer=byte_level(False),
                        post_processor=template(["<s>"], ["</s>"]), decoder=from_bytes)
    yield "llama3", whole({**bytes_, "ignore_merges": True}, added_tokens=[added("<|begin_of_text|>"), added("<|eot_id|>")], pre_tokenizer=split_bytes(LLAMA3),
                          post_processor=sequence("processors", byte_level(True), template(["<|begin_of_text|>"])), decoder=from_bytes)
    yield "qwen2", whole(bytes_, added_tokens=chat, normalizer={"type": "NFC"}, pre_tokenizer=split_bytes(QWEN2), post_processor=byte_level(), decoder=byte_level())
    yield "qwen3", whole(bytes_, added_tokens=[*chat, added("<think>", False, normalized=False), added("</tool_call>", False, normalized=False)],
                         normalizer={"type": "NFC"}, pre_tokenizer=split_bytes(QWEN2), post_processor=byte_level(), decoder=byte_level())
    yield "gpt-oss", whole({**bytes_, "ignore_merges": True}, added_tokens=[added("<|start|>"), added("<|channel|>"), added("<|return|>")],
                           pre_tokenizer=split_bytes(O200K), post_processor=byte_level(), decoder=from_bytes)
    yield "tekken", whole({**bytes_, "ignore_merges": True}, added_tokens=[added("<unk>"), added("<s>"), added("</s>"), added("[INST]")],
                          pre_tokenizer=split_bytes(TEKKEN), post_processor=template(["<s>"]), decoder=from_bytes)
    yield "deepseek", whole(bytes_, added_tokens=[added("<｜begin▁of▁sentence｜>", normalized=True), added("<｜User｜>", False)],
                            normalizer=sequence("normalizers"), pre_tokenizer=split_bytes(*DEEPSEEK),
                            post_processor=template(["<｜begin▁of▁sentence｜>"]), decoder=from_bytes)
    yield "deepseek-coder", whole(bytes_, added_tokens=[added("<｜fim▁begin｜>", False)], normalizer=sequence("normalizers"),
                                  pre_tokenizer=sequence("pretokenizers", *map(split, DEEPSEEK_CODER), {"type": "Digits", "individual_digits": True}, to_bytes),
                                  decoder=from_bytes)
    yield "bloom", whole(bytes_, added_tokens=[added("<s>"), added("<pad>")], pre_tokenizer=split_bytes(BLOOM), post_processor=byte_level(), decoder=from_bytes)
    yield "gpt-neox", whole(bytes_, added_tokens=[added("<|endoftext|>"), added("  ", False), added("   ", False), added("    ", False)],
                            normalizer={"type": "NFC"}, pre_tokenizer=byte_level(), post_processor=byte_level(), decoder=from_bytes)
    yield "olmo2", whole(bytes_, added_tokens=chat, pre_tokenizer=split_bytes(CL100K), post_processor=byte_level(), decoder=from_bytes)
    yield "modernbert", whole(bytes_, added_tokens=[added("[CLS]"), added("[SEP]"), added("[MASK]", lstrip=True), added("   ", False)], normalizer={"type": "NFC"},
                              pre_tokenizer=byte_level(), post_processor=template(["[CLS]"], ["[SEP]"]), decoder=from_bytes)
    yield "falcon", whole(bytes_, added_tokens=[added(">>TITLE<<")], decoder=from_bytes, pre_tokenizer=sequence(
        "pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(), {"type": "Digits", "individual_digits": False}, split(FALCON[0])))
    yield "starcoder", whole(bytes_, added_tokens=chat, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()),
                             decoder=from_bytes)
    fallback = vocabulary["fallback"]
    llama_decoder = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                             {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    llama_normalizer = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    marks = [added("<unk>"), added("<s>"), added("</s>")]
    yield "llama2", whole(fallback, added_tokens=[{**token, "normalized": True} for token in marks], normalizer=llama_normalizer,
                          post_processor=template(["<s>"]), decoder=llama_decoder)
    yield "phi3", whole(fallback, added_tokens=[*marks, added("<|assistant|>", rstrip=True), added("<|end|>", rstrip=True)], normalizer=llama_normalizer,
                        post_processor=template(["<s>"]), decoder=llama_decoder)
    for scheme in ("first", "always", "never"):
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
        yield "mistral-" + scheme, whole({**fallback, "ignore_merges": False}, added_tokens=marks, pre_tokenizer=metaspace, post_processor=template(["<s>"]),
                                         decoder=llama_decoder)
        yield "xlm-r-" + scheme, whole(vocabulary["unigram"], added_tokens=[added("<s>"), added("</s>"), added("<mask>", lstrip=True)],
                                       normalizer=sequence("normalizers", {"type": "Precompiled", "precompiled_charsmap": vocabulary["charsmap"]},
                                                           {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
                                       pre_tokenizer={**metaspace, "split": True}, post_processor=template(["<s>"], ["</s>"]), decoder={**metaspace, "split": True})
    yield "gemma", whole(fallback, added_tokens=[*marks, added("<start_of_turn>"), added("\n\n", False, normalized=False)],
                         normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                         pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                         post_processor=template(["<s>"]), decoder=sequence("decoders", *llama_decoder["decoders"][:3]))
    specials = [added(name) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    for name, lower, accents, chinese in (("uncased", True, None, True), ("cased", False, None, True), ("multilingual", False, False, True),
                                          ("chinese", True, None, True), ("plain", True, False, False)):
        yield "bert-" + name, whole(vocabulary["wordpiece"], added_tokens=specials, pre_tokenizer={"type": "BertPreTokenizer"},
                                    normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": chinese, "strip_accents": accents,
                                                "lowercase": lower},
                                    post_processor=template(["[CLS]"], ["[SEP]"]), decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    yield "t5", whole(vocabulary["unigram"], added_tokens=[added("<pad>"), added("</s>"), added("<extra_id_0>")],
                      normalizer={"type": "Precompiled", "precompiled_charsmap": vocabulary["charsmap"]},
                      pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace), post_processor=template([], ["</s>"]), decoder=metaspace)
    yield "marian", whole(vocabulary["unigram-bytes"], added_tokens=[added("<unk>"), added("</s>")],
                          normalizer=sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True}),
                          pre_tokenizer=metaspace, post_processor=template([], ["</s>"]), decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace))
    yield "clip", whole(vocabulary["suffix"], added_tokens=[added("<|endoftext|>")],
                        normalizer=sequence("normalizers", {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"}),
                        pre_tokenizer=sequence("pretokenizers", split(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", True), to_bytes),
                        decoder={"type": "BPEDecoder", "suffix": "</w>"})
    yield "wav2vec2", whole(vocabulary["wordlevel"], added_tokens=[added("<pad>")], pre_tokenizer=split("", "Isolated"),
                            decoder={"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True})


# ---------------------------------------------------------------------------------------------------------- random components

BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
EXPRESSIONS = [r"\s+", r"\s", r"\d", r"\d+", r"[aeiou]", r"[^\w\s]+", r"\p{Lu}", r"\w+|[^\w\s]+", r"(?<=a)b", r"(?<!\w)\w", r"a|ab|abc", r"\b", r"\B", r"$", r"^", r"",
               r"x*", r"(?=\p{Lu})", r"\p{Han}", r"\p{M}+", r"[\p{L}--[a-c]]", r"(?i)[a-m]+", r"\S+?", r".", r"..", r"(ab)+", r"\p{^L}+", r"\P{L}", r"[^\S\n]+", r"\n",
               r"\\", r"[\[\]]", r"\x{4e00}", r"\t|\x20", r"\p{Script=Greek}", r"\p{Greek}", r"a{2,3}", r"a{2}?", r" {2,}", r"\u00e9", r"'(?:s|t|re|ll)", r"\d{1,3}(?=(?:\d{3})*\b)",
               r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))", r"(?:\r\n|\n)", r"(?>a+)b", r"[a-zA-Z]+(?:'[a-z]+)?", r"\h", r"\R", r"\X", r"[[:alpha:]]+", r"[[:punct:]]", r"(?m:.)+",
               r"(?s).", r"(?x) a b", r"\Aa", r"a\z", r"a\Z", r"\Ga", r"(a)\1", r"(?<n>a)\k<n>", r"[^a&&b]", r"\p{Emoji}", r"\p{Alphabetic}+", r"\p{ASCII}+", r"\p{Ll}\p{Lu}"]
for name in ("Alnum", "Alpha", "Blank", "Cntrl", "Digit", "Graph", "Lower", "Print", "Punct", "Space", "Upper", "XDigit", "Word", "Any", "Cn", "Co", "Sc", "Zs"):
    EXPRESSIONS.append(r"\p{%s}+" % name)
STRINGS = [" ", "a", "e", ".", "▁", "\n", "th", "  ", "##", "é", "’"]


def random_pattern(rng):
    return {"String": rng.choice(STRINGS)} if rng.random() < 0.4 else {"Regex": rng.choice(EXPRESSIONS + [GPT2, LLAMA3, O200K])}


def left_out(rng, component, *optional):
    """Old files lack fields; what they mean then is the library's business."""
    for name in optional:
        if rng.random() < 0.15:
            component.pop(name)
    return component


def random_normalizer(rng, vocabulary, depth=0):
    flag = lambda: rng.random() < 0.5
    kind = rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Replace", "Prepend", "Precompiled", "Nmt", "ByteLevel", "BertNormalizer",
                       "Sequence", "Sequence"])
    if kind == "Strip":
        return {"type": kind, "strip_left": flag(), "strip_right": flag()}
    if kind == "Replace":
        return {"type": kind, "pattern": random_pattern(rng), "content": rng.choice(["", " ", "▁", "x", "ab", "é"])}
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(["▁", " ", "x", "ab"])}
    if kind == "Precompiled":
        return {"type": kind, "precompiled_charsmap": vocabulary["charsmap"]}
    if kind == "BertNormalizer":
        return {"type": kind, "clean_text": flag(), "handle_chinese_chars": flag(), "strip_accents": rng.choice([None, True, False]), "lowercase": flag()}
    if kind == "Sequence":
        return sequence("normalizers", *(random_normalizer(rng, vocabulary, depth + 1) for _ in range(rng.randint(0, 3 - depth))))
    return {"type": kind}


def random_pre_tokenizer(rng, depth=0):
    flag = lambda: rng.random() < 0.5
    kind = rng.choice(["ByteLevel", "ByteLevel", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Metaspace", "CharDelimiterSplit", "Punctuation", "Split", "Split",
                       "Digits", "UnicodeScripts", "FixedLength", "Sequence", "Sequence", "Sequence"])
    if kind == "ByteLevel":
        return left_out(rng, byte_level(flag(), flag()), "use_regex")
    if kind == "Metaspace":
        if rng.random() < 0.15:
            return {"type": kind, "replacement": "▁", "add_prefix_space": flag()}
        return left_out(rng, {"type": kind, "replacement": rng.choice(["▁", "_"]), "prepend_scheme": rng.choice(["always", "first", "never"]), "split": flag()},
                        "prepend_scheme", "split")
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice(["a", " ", "-", "é"])}
    if kind == "Punctuation":
        return left_out(rng, {"type": kind, "behavior": rng.choice(BEHAVIOURS)}, "behavior")
    if kind == "Split":
        return {"type": kind, "pattern": random_pattern(rng), "behavior": rng.choice(BEHAVIOURS), "invert": flag()}
    if kind == "Digits":
        return {"type": kind, "individual_digits": flag()}
    if kind == "FixedLength":
        return {"type": kind, "length": rng.randint(1, 9)}
    if kind == "Sequence":
        return sequence("pretokenizers", *(random_pre_tokenizer(rng, depth + 1) for _ in range(rng.randint(0, 3 - depth))))
    return {"type": kind}


def random_decoder(rng, depth=0):
    flag = lambda: rng.random() < 0.5
    kind = rng.choice(["ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "CTC", "Fuse", "Strip", "ByteFallback", "Replace", "Sequence", "Sequence"])
    if kind == "ByteLevel":
        return byte_level(flag(), flag())
    if kind == "WordPiece":
        return {"type": kind, "prefix": rng.choice(["##", "a"]), "cleanup": flag()}
    if kind == "Metaspace":
        return {"type": kind, "replacement": "▁", "prepend_scheme": rng.choice(["always", "first", "never"]), "split": flag()}
    if kind == "BPEDecoder":
        return {"type": kind, "suffix": rng.choice(["</w>", "a"])}
    if kind == "CTC":
        return {"type": kind, "pad_token": rng.choice(["<pad>", "a"]), "word_delimiter_token": "|", "cleanup": flag()}
    if kind == "Strip":
        return {"type": kind, "content": rng.choice([" ", "a", "▁"]), "start": rng.randint(0, 3), "stop": rng.randint(0, 3)}
    if kind == "Replace":
        return {"type": kind, "pattern": random_pattern(rng), "content": rng.choice(["", " ", "x"])}
    if kind == "Sequence":
        return sequence("decoders", *(random_decoder(rng, depth + 1) for _ in range(rng.randint(0, 3 - depth))))
    return {"type": kind}


def random_template(rng, ids):
    names = ["[CLS]", "[SEP]", "<x>"]
    special = lambda: {"SpecialToken": {"id": rng.choice(names), "type_id": rng.randint(0, 2)}}
    text = lambda which: {"Sequence": {"id": which, "type_id": rng.randint(0, 1)}}
    around = lambda: [special() for _ in range(rng.randint(0, 2))]
    return {"type": "TemplateProcessing", "single": around() + [text("A")] + around(), "pair": around() + [text("A")] + around() + [text("B")] + around(),
            "special_tokens": {name: {"id": name, "ids": [rng.choice(ids) for _ in range(rng.randint(1, 2))], "tokens": [name] * 2} for name in names}}


def random_processor(rng, ids, depth=0):
    kind = rng.choice(["BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing", "TemplateProcessing"] + ["Sequence"] * (depth == 0))
    if kind in ("BertProcessing", "RobertaProcessing"):
        more = {"trim_offsets": True, "add_prefix_space": rng.random() < 0.5} if kind[0] == "R" else {}
        return {"type": kind, "sep": ["[SEP]", rng.choice(ids)], "cls": ["[CLS]", rng.choice(ids)], **more}
    if kind == "ByteLevel":
        return byte_level(rng.random() < 0.5, rng.random() < 0.5)
    if kind == "Sequence":
        return sequence("processors", *(random_processor(rng, ids, 1) for _ in range(rng.choice((0, 1, 1, 2)))))
    template_ = random_template(rng, ids)
    for token in template_["special_tokens"].values():
        token["tokens"] = token["tokens"][:len(token["ids"])]
    return template_


def random_added(rng, texts):
    flag = lambda: rng.random() < 0.4
    contents = ["<extra>", "Extra", "<s>", "</s>", "[MASK]", "<pad>", "é", "ab", "  ", "\n", "<|x|>", "▁y", "a b", " z", "ﬁ", "ÉÉ", rng.choice(texts.words),
                rng.choice(texts.words)]
    rng.shuffle(contents)
    return [{"id": 0, "content": content, "single_word": flag(), "lstrip": flag(), "rstrip": flag(), "normalized": flag(), "special": flag()}
            for content in contents[:rng.randint(0, 5)]]


def without_clashes(file):
    """Added tokens that are nothing or alike once they are normalised have no order in the library."""
    normalizer = Tokenizer.from_str(json.dumps({**file, "added_tokens": [], "post_processor": None})).normalizer
    spelled, kept = set(), []
    for token in file["added_tokens"]:
        text = normalizer.normalize_str(token["content"]) if normalizer is not None and token["normalized"] else token["content"]
        if text and text not in spelled:
            kept.append(token)
        spelled.add(text)
    return with_right_ids({**file, "added_tokens": kept})


def random_model(rng, vocabulary):
    kind = rng.choice([name for name in vocabulary if name != "charsmap"])
    model = dict(vocabulary[kind])
    flag = lambda: rng.random() < 0.5
    if model["type"] == "BPE":
        if rng.random() < 0.3:
            model["fuse_unk"] = flag()
            model["ignore_merges"] = flag()
        if rng.random() < 0.2:
            model["unk_token"] = rng.choice([None, "<unk>", "a", "missing"])
        if rng.random() < 0.2:
            model["byte_fallback"] = flag()
        if rng.random() < 0.2:
            model["merges"] = [" ".join(pair) for pair in model["merges"] if not any(" " in part for part in pair)]
        if rng.random() < 0.1:
            model["dropout"] = 0.0
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model[name] is None and rng.random() < 0.1:
                model[name] = ""
    elif model["type"] == "WordPiece" and rng.random() < 0.3:
        model["max_input_chars_per_word"] = rng.randint(0, 12)
    elif model["type"] == "Unigram":
        if rng.random() < 0.3:
            model["byte_fallback"] = flag()
        if rng.random() < 0.1:
            model["unk_id"] = None
    if model["type"].startswith("Word") and rng.random() < 0.1:
        model["unk_token"] = "missing"
    return model


def random_file(rng, vocabulary, texts):
    maybe = lambda chance, make: make() if rng.random() < chance else None
    model = random_model(rng, vocabulary)
    ids = list(range(min(20, len(model["vocab"]))))
    file = whole(model, added_tokens=random_added(rng, texts), normalizer=maybe(0.6, lambda: random_normalizer(rng, vocabulary)),
                 pre_tokenizer=maybe(0.8, lambda: random_pre_tokenizer(rng)), decoder=maybe(0.8, lambda: random_decoder(rng)))
    with contextlib.suppress(BaseException):  # a file that the library refuses, or a panic of its normaliser
        file = without_clashes(file)
    file["post_processor"] = maybe(0.5, lambda: random_processor(rng, ids))
    if "ByteLevel" in json.dumps(file["pre_tokenizer"]):  # "first" counts bytes of a character there, which no public file has
        file["pre_tokenizer"] = json.loads(json.dumps(file["pre_tokenizer"]).replace('"first"', '"always"'))
    if rng.random() < 0.2:
        file["truncation"] = {"direction": rng.choice(["Right", "Left"]), "max_length": rng.randint(9, 30), "stride": 0,
                              "strategy": rng.choice(["LongestFirst", "OnlyFirst", "OnlySecond"])}
    if rng.random() < 0.2:
        file["padding"] = {"strategy": rng.choice(["BatchLongest", {"Fixed": rng.randint(0, 40)}]), "direction": rng.choice(["Right", "Left"]),
                           "pad_to_multiple_of": rng.choice([None, None, 8]), "pad_id": rng.choice(ids), "pad_type_id": 0, "pad_token": "[PAD]"}
    return file


# ------------------------------------------------------------------------------------------------------------------ comparing

REFUSED = "refused"
PANIC = "a panic of the library, which heed need not have"
# What heed refuses by name and says so in docs/tokenizers.md.
BY_NAME = ("a category, script or class that heed knows", "an escape that heed knows", "a group that heed knows", "a class that heed knows",
           "repeats of something that is never empty", "one template, got two")
CHARSMAP = [""]  # too long to print


@contextlib.contextmanager
def no_messages():
    """The library's panics print; they are refusals here."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def outcome(call):
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic is no Exception
        if type(error).__name__ == "PanicException":
            return PANIC
        return (REFUSED, str(error))


def is_refused(value):
    return isinstance(value, tuple) and len(value) == 2 and value[0] == REFUSED


class Count:
    def __init__(self, most_shown):
        self.files = self.compared = self.wrong = self.refused = self.wrong_files = self.by_name = 0
        self.last = None
        self.most_shown = most_shown
        self.kinds = {}

    def same(self, what, want, got, about):
        self.compared += 1
        if want == got or want == PANIC or (is_refused(want) and is_refused(got)):
            return
        if is_refused(got) and what == "loading" and any(reason in got[1] for reason in BY_NAME):
            self.by_name += 1
            return
        self.wrong += 1
        self.kinds[what] = self.kinds.get(what, 0) + 1
        if self.last == self.files:  # the first difference of a file says enough
            return
        self.last = self.files
        self.wrong_files += 1
        if self.wrong_files <= self.most_shown:
            want, got = first_difference(want, got)
            print(f"DIFFERENT {what}\n    library {shown(want)}\n    heed    {shown(got)}\n    {about}", flush=True)


def first_difference(want, got):
    """Long lists from where they differ."""
    if not (isinstance(want, list) and isinstance(got, list)) or len(want) < 20:
        return want, got
    at = next((n for n, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    return ["..."] + want[max(at - 2, 0):at + 8], ["..."] + got[max(at - 2, 0):at + 8]


def shown(value):
    text = repr(value)
    return text if len(text) < 400 else text[:400] + "..."


def compare_file(name, file, texts, rng, count, rounds):
    written = json.dumps(file)
    theirs = outcome(lambda: Tokenizer.from_str(written))
    ours = outcome(lambda: heed.Tokenizer.from_json(written))
    count.files += 1
    parts = {key: value for key, value in file.items() if key != "model" and value}
    parts["model"] = {key: value for key, value in file["model"].items() if key not in ("vocab", "merges") and value}
    about = name + " " + json.dumps(parts, ensure_ascii=False).replace(json.dumps(CHARSMAP[0]), "...")
    if theirs == PANIC:
        return
    if is_refused(theirs) or is_refused(ours):
        count.refused += 1
        count.same("loading", theirs if is_refused(theirs) else "loaded", ours if is_refused(ours) else "loaded", about)
        return
    limit = max(theirs.get_vocab_size(), 1)
    count.same("size", theirs.get_vocab_size(), ours.vocab_size, about)
    contents = [token["content"] for token in file["added_tokens"]]
    lines = ["", " ", "a", *(texts.text(rng, rng.choice((1, 3, 8, 20)), contents) for _ in range(rounds))]
    for line in lines:
        where = f"{about} {line!r}"
        for special in (True, False):
            want = outcome(lambda: theirs.encode(line, add_special_tokens=special).ids)
            got = outcome(lambda: ours.encode(line, add_special_tokens=special))
            count.same("ids", want, got, where)
        if is_refused(want):
            continue
        other = rng.choice(lines)
        count.same("pair", outcome(lambda: theirs.encode(line, other).ids), outcome(lambda: ours.encode(line, other)), where + f" with {other!r}")
        for ids in (want, [rng.randrange(limit + 3) for _ in range(rng.randint(0, 12))]):
            for skip in (True, False):
                count.same("text", outcome(lambda: theirs.decode(ids, skip_special_tokens=skip)), outcome(lambda: ours.decode(ids, skip_special_tokens=skip)),
                           f"{about} {ids}")
    batch = lines[:6]
    count.same("batch", outcome(lambda: [one.ids for one in theirs.encode_batch(batch)]), outcome(lambda: ours.encode_batch(batch)), f"{about} {batch!r}")
    tokens = [contents[0] if contents else "a", "missing"]
    count.same("token_to_id", [theirs.token_to_id(token) for token in tokens], [ours.token_to_id(token) for token in tokens], about)


def compare_pattern(name, patterns, behaviour, invert, text, vocabulary, count):
    file = whole({**vocabulary["bytes"], "merges": []}, pre_tokenizer=sequence("pretokenizers", *(split(one, behaviour, invert) for one in patterns)))
    theirs = outcome(lambda: Tokenizer.from_str(json.dumps(file)))
    file["model"] = {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}}
    count.files += 1
    if is_refused(theirs):
        ours = outcome(lambda: heed.Tokenizer.from_json(json.dumps(file)))
        count.same("loading", theirs, ours if is_refused(ours) else "loaded", name)
        return
    pieces = outcome(lambda: [piece for piece, _ in theirs.pre_tokenizer.pre_tokenize_str(text)])
    if is_refused(pieces):
        return
    # The ids are pieces: any other cut shows.
    known = {"?": 0}
    for piece in pieces:
        known.setdefault(piece, len(known))
    file["model"]["vocab"] = known
    ours = outcome(lambda: heed.Tokenizer.from_json(json.dumps(file)))
    if is_refused(ours):
        count.refused += 1
        count.same("loading", "loaded", ours, f"{name} {patterns}")
        return
    got = outcome(lambda: ours.encode(text))
    want = [known[piece] for piece in pieces]
    if want != got and not is_refused(got):
        at = next((n for n, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        names = {number: piece for piece, number in known.items()}
        want, got = pieces[at:at + 3], [names[n] for n in got[at:at + 3]]
    count.same("pieces", want, got, f"{name} {patterns} {behaviour}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="for each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="families, random or patterns")
    parser.add_argument("--family", default="")
    parser.add_argument("--vocabularies", default="", help="a file that keeps what was trained for the next run")
    parser.add_argument("--show", type=int, default=10, help="differences to print")
    options = parser.parse_args()
    texts = Texts(options.seed)
    vocabulary = kept_vocabularies(texts, options.vocabularies)
    CHARSMAP[0] = vocabulary["charsmap"]
    rng = random.Random(options.seed)
    count = Count(options.show)
    with_time = lambda: time.monotonic() + options.seconds
    quiet = no_messages() if options.only != "loud" else contextlib.nullcontext()
    with quiet:
        if options.only in ("", "families"):
            until, rounds = with_time(), 0
            while time.monotonic() < until or rounds == 0:
                rounds += 1
                for name, file in families(vocabulary):
                    if options.family in ("", name):
                        compare_file(name, file, texts, rng, count, 12)
            print(f"families: {count.files} files so far", flush=True)
        if options.only in ("", "random"):
            until = with_time()
            while time.monotonic() < until:
                compare_file("random", random_file(rng, vocabulary, texts), texts, rng, count, 4)
            print(f"random: {count.files} files so far", flush=True)
        if options.only in ("", "patterns"):
            until, rounds = with_time(), 0
            while time.monotonic() < until or rounds == 0:
                rounds += 1
                text = texts.text(rng, 3000)
                for name, patterns in PATTERNS.items():
                    compare_pattern(name, patterns, "Isolated", False, text, vocabulary, count)
                for expression in EXPRESSIONS:
                    compare_pattern("expression", [expression], rng.choice(BEHAVIOURS), rng.random() < 0.3, text[:3000], vocabulary, count)
            print(f"patterns: {count.files} files so far", flush=True)
    print(f"{count.files} files ({count.refused} refused by both or one, {count.by_name} by heed alone and by name), {count.compared} comparisons, {count.wrong} different in {count.wrong_files} files {count.kinds}")
    sys.exit(count.wrong > 0)


if __name__ == "__main__":
    main()
