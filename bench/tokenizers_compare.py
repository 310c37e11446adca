"""heed's tokenizers beside Hugging Face's: equality on a large mixed text, and speed.

    PYTHONPATH=build/release/apps/python python bench/tokenizers_compare.py [--megabytes 4] [--speed]

Needs the package `tokenizers`. Trains tokenizers of every kind with it, then compares ids and decoded texts, line by line
and as a whole, on invented words of many scripts with emoji, joiners, marks, white space and control characters.
"""
import argparse
import json
import random
import sys
import time

import heed
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SCRIPTS = [(0x61, 0x7A), (0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA),
           (0x621, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x4FFF), (0xAC00, 0xAEFF),
           (0x1F600, 0x1F64F), (0x30, 0x39), (0x660, 0x669)]
ODD = ["\u200d", "\ufe0f", "\u0301", "\u0323", "\u00a0", "\u2028", "\u3000", "\t", "\r\n", "\n", "\n\n", "  ", "   ", "\x00", "\x1f",
       "\x7f", "\ufffd", "\u00ad", "ﬁ", "Å", "ǆ", "İ", "ß", "ſ", "½", "²", "①", "™", "…", "한글", "e\u0301", "\U0001f468\u200d\U0001f469",
       "\U0001f1e9\U0001f1ea", "'s", "'LL", "'re", "<s>", "</s>", "[MASK]", "<|endoftext|>", "\ud7ff", "\ue000", "\U0010ffff", "«", "—", "_"]


def mixed_text(seed, size):
    rng = random.Random(seed)
    words = []
    for _ in range(4000):
        low, high = rng.choice(SCRIPTS)
        words.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9))))
    weights = [1 / (n + 3) for n in range(len(words))]
    parts, length = [], 0
    while length < size:
        chunk = rng.choices(words, weights, k=20)
        for word in chunk:
            kind = rng.random()
            if kind < 0.1:
                word = rng.choice(ODD)
            elif kind < 0.15:
                word += rng.choice(ODD) + rng.choice(".,;:!?()[]{}'\"-/\\@#$%^&*+=~`|<>")
            elif kind < 0.2:
                word = word.capitalize() + str(rng.randint(0, 10**rng.randint(1, 9)))
            parts.append(word + (" " if rng.random() < 0.85 else rng.choice(["", "  ", "\n", ". "])))
            length += len(parts[-1].encode("utf-8", "replace"))
    return "".join(parts)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]


def byte_level(pre, specials=("<|endoftext|>",), ignore_merges=False, prefix_space=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return tokenizer, trainer


def split_then_bytes(*patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
                                   + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def kinds():
    yield "gpt2", *byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "roberta", *byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), ("<s>", "</s>"))
    for name, patterns in (("llama3", [LLAMA3]), ("qwen2", [QWEN]), ("gpt4o", [O200K]), ("gpt4", [CL100K]), ("deepseek", DEEPSEEK)):
        yield name, *byte_level(split_then_bytes(*patterns), ignore_merges=name == "llama3")
    llama2 = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama2.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    yield "llama2", llama2, trainers.BpeTrainer(vocab_size=3000, show_progress=False, max_token_length=16,
                                                special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
    gemma = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    yield "gemma", gemma, trainers.BpeTrainer(vocab_size=3000, show_progress=False, max_token_length=16,
                                              special_tokens=["<unk>"] + [f"<0x{b:02X}>" for b in range(256)])
    for name, lower in (("bert", True), ("bert-cased", False)):
        bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        bert.normalizer = normalizers.BertNormalizer(lowercase=lower)
        bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        bert.decoder = decoders.WordPiece()
        bert.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
        yield name, bert, trainers.WordPieceTrainer(vocab_size=8000, show_progress=False,
                                                    special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    for name, form in (("unigram", normalizers.NFKC()), ("unigram-nmt", normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]))):
        unigram = Tokenizer(models.Unigram())
        unigram.normalizer = normalizers.Sequence([form, normalizers.Replace(Regex(" {2,}"), " ")])
        unigram.pre_tokenizer = pre_tokenizers.Metaspace()
        unigram.decoder = decoders.Metaspace()
        yield name, unigram, trainers.UnigramTrainer(vocab_size=3000, show_progress=False, unk_token="<unk>",
                                                     special_tokens=["<pad>", "</s>", "<unk>"])
    word = Tokenizer(models.WordLevel(unk_token="<unk>"))
    word.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    word.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True), pre_tokenizers.Punctuation()])
    yield "wordlevel", word, trainers.WordLevelTrainer(vocab_size=5000, show_progress=False, special_tokens=["<unk>"])
    suffix = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    suffix.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    suffix.decoder = decoders.BPEDecoder()
    yield "bpe-suffix", suffix, trainers.BpeTrainer(vocab_size=3000, show_progress=False, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"[aeiou\s]|\d+"), behaviour), pre_tokenizers.ByteLevel(False, use_regex=False)])
        yield "split-" + behaviour, *byte_level(pre)


def compare(name, theirs, text, speed):
    tokenizer = json.loads(theirs.to_str())
    for token in tokenizer["added_tokens"][-1:]:  # one with every option, too
        tokenizer["added_tokens"].append({**token, "id": theirs.get_vocab_size(), "content": "<extra>", "lstrip": True, "rstrip": True,
                                          "special": False, "normalized": True, "single_word": True})
    theirs = Tokenizer.from_str(json.dumps(tokenizer))
    ours = heed.Tokenizer.from_json(json.dumps(tokenizer))
    texts = text.split("\n")[:4000] + [text[:200000], "x <extra> y", "x<extra> y", " <extra>", "", " ", "a" * 5000, " " * 3000 + "b"]
    wrong = 0
    for line in texts:
        want = theirs.encode(line).ids
        got = ours.encode(line)
        same = want == got and theirs.decode(want) == ours.decode(want) and \
            theirs.decode(want, skip_special_tokens=False) == ours.decode(want, skip_special_tokens=False)
        if not same:
            wrong += 1
            if wrong <= 2:
                at = next((n for n, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
                print("   ", repr(line[:60]), want[at:at + 6], got[at:at + 6], repr(theirs.decode(want)[:40]), repr(ours.decode(want)[:40]))
    line = f"{name:20} {len(texts)} texts, {wrong} different"
    if speed:
        size = len(text.encode("utf-8", "replace"))
        best = [1e9, 1e9]
        lines = text.split("\n")
        for _ in range(3):
            for which, encode in enumerate((lambda t: theirs.encode(t), ours.encode)):
                begin = time.perf_counter()
                for one in lines:
                    encode(one)
                best[which] = min(best[which], time.perf_counter() - begin)
        line += f"; MB/s: Hugging Face {size / best[0] / 1e6:.2f}, heed {size / best[1] / 1e6:.2f}"
        batch = [1e9, 1e9]
        for _ in range(3):  # batches of lines on all cores; Hugging Face without the offsets that heed does not give either
            for which, encode in enumerate((theirs.encode_batch_fast, ours.encode_batch)):
                begin = time.perf_counter()
                encode(lines)
                batch[which] = min(batch[which], time.perf_counter() - begin)
        line += f"; batches: Hugging Face {size / batch[0] / 1e6:.2f}, heed {size / batch[1] / 1e6:.2f}"
    print(line, flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=1)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--kind", default="")
    parser.add_argument("--vocabulary", type=int, help="entries to train (default: a few thousand)")
    options = parser.parse_args()
    training = mixed_text(1, 400_000)
    text = mixed_text(2, int(options.megabytes * 1e6)).replace("\ud7ff", "")
    wrong = 0
    for name, tokenizer, trainer in kinds():
        if options.kind and options.kind != name:
            continue
        if options.vocabulary:
            trainer.vocab_size = options.vocabulary
        tokenizer.train_from_iterator(training.split("\n"), trainer)
        wrong += compare(name, tokenizer, text + training[:50000], options.speed)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
