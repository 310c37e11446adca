#!/usr/bin/env python3
"""Random checkpoints of every family that heed loads, made by transformers, through heed and through transformers.

    PYTHONPATH=build/release/apps/python tests/suites/checkpoints.py [--seeds 1 2 3] [--each 5] [--only FAMILY ...]
        [--kernel reference] [--keep FOLDER]

For each family and seed it draws `--each` configurations over the fields of the family's configuration class: odd
sizes, grouped heads, heads of a size of their own, biases, ties, activations, rope types in both spellings, windows,
norm placements, experts, classes with another head or none. It saves them in f32, bf16 or f16, in one file or in
shards, with or without the base model's prefix, and compares heed with transformers (f32, eager) on that folder:
logits, hidden states and attention within 2e-4, loss and gradients within 1e-3 of the largest, greedy and beam search
token for token (a difference whose scores are equal to 1e-4 is a tie), and what heed saves, loaded by transformers.
What heed refuses is listed with its words. Ends with 1 if anything differed. Needs torch and transformers.
"""
import argparse
import collections
import copy
import json
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import warnings

from checkpoint_families import ENCODERS, FAMILIES, RARE_ACTIVATIONS, TRANSLATORS, maybe

TOLERANCE = 2e-4
GRADIENT_TOLERANCE = 1e-3
TIE = 1e-4

BUFFERS = ("e_score_correction_bias", "final_logits_bias")  # of transformers, which therefore has no gradients of them


# ---- Making ----------------------------------------------------------------------------------------------------------


def random_weights(model, family, seed):
    """Far from where training begins, so that whatever is mixed up shows."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda p: torch.randn(p.shape, generator=generator)  # noqa: E731
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:  # sinusoids
                continue
            if p.dim() > 1:
                gain = 0.5 if "embed" in name or "wte" in name or "wpe" in name or "shared" in name else 1.0
                if family == "t5" and name.endswith(".q.weight"):
                    gain = 0.4
                p.copy_(noise(p) * gain / (1 if gain == 0.5 else math.sqrt(p.shape[-1])))
            elif "bias" in name or family == "gemma2" or "sinks" in name:
                p.copy_(noise(p) * 0.2)
            else:
                p.copy_(1 + noise(p) * 0.2)
        for name, b in model.named_buffers():
            if name.endswith(BUFFERS):
                b.copy_(noise(b) * 0.2)
    return model.eval()


def edit_config(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config, indent=2))


def old_rope_spelling(config):
    """As files were before transformers 5."""
    r = config.pop("rope_parameters")
    if "full_attention" in r:
        if any(v["rope_type"] != "default" for v in r.values()):
            config["rope_parameters"] = r
            return
        config["global_rope_theta"] = r["full_attention"]["rope_theta"]
        config["local_rope_theta"] = r["sliding_attention"]["rope_theta"]
        return
    theta, share = r.pop("rope_theta"), r.pop("partial_rotary_factor", None)
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = theta
    if share is not None:
        config["rotary_pct" if neox else "partial_rotary_factor"] = share
    kind = r.pop("rope_type")
    if kind != "default":
        config["rope_scaling"] = {"type" if kind in ("linear", "dynamic", "yarn") else "rope_type": kind, **r}


def rename_tensors(folder, base):
    """The base model's prefix taken away from all that have it."""
    from safetensors.torch import load_file, save_file
    path = folder / "model.safetensors"
    tensors = {k.removeprefix(base): v for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def generation_settings(rng, fields):
    """What a generation_config.json may ask for and heed honours."""
    vocab = fields["vocab_size"]
    some = {"suppress_tokens": rng.sample(range(vocab), 5), "begin_suppress_tokens": rng.sample(range(vocab), 9),
            "bad_words_ids": [[rng.randrange(vocab)], [rng.randrange(vocab), rng.randrange(vocab)], [3, 4, 5]],
            "no_repeat_ngram_size": rng.choice([1, 2, 3]), "min_length": rng.choice([5, 20]), "num_beams": 3,
            "repetition_penalty": 1.2, "length_penalty": 0.7, "early_stopping": True}
    return {key: some[key] for key in rng.sample(sorted(some), 3)}


def make(family, rng, seed, folder):
    """Writes a checkpoint; (class, what was drawn)."""
    draw, full, base, others = FAMILIES[family]
    fields = draw(rng)
    name = rng.choices([full, base, rng.choice(others)], [0.8, 0.14, 0.06])[0]
    kind = getattr(transformers, name)
    untied_t5 = family == "t5" and not fields["tie_word_embeddings"]
    config = kind.config_class(**copy.deepcopy(fields))
    torch.manual_seed(seed)
    model = random_weights(kind(config), family, seed)
    if untied_t5 and name == full and maybe(rng):  # version 1.1: a head of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
    dtype = rng.choices(["float32", "bfloat16", "float16"], [0.6, 0.2, 0.2])[0]
    if name == "MarianModel":  # its file has the sinusoids, rounded, where heed computes them
        dtype = "float32"
    shard = rng.choice(["20KB", "5KB"]) if maybe(rng, 0.25) else "1GB"
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    notes = [name, dtype]
    if shard != "1GB":
        notes.append("shards")
    if "rope_parameters" in fields and maybe(rng, 0.4):
        edit_config(folder, old_rope_spelling)
        notes.append("old rope")
    prefix = kind.base_model_prefix
    if name == full and shard == "1GB" and prefix and maybe(rng, 0.15) and family not in ("bart", "marian", "t5"):
        rename_tensors(folder, prefix + ".")
        notes.append("no prefix")
    if maybe(rng, 0.2):
        (folder / "generation_config.json").unlink(missing_ok=True)
        notes.append("no generation_config")
    elif (folder / "generation_config.json").exists() and maybe(rng, 0.4):
        path = folder / "generation_config.json"
        settings = generation_settings(rng, fields)
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        notes.append(json.dumps(settings))
    return kind, fields, notes


def no_cache(family):
    return {} if family in ENCODERS else {"use_cache": False}


def load_theirs(kind, folder):
    """Afresh for every comparison, as rope types that follow the length remember the longest text seen."""
    more = {"experts_implementation": "eager"} if "num_local_experts" in json.loads(
        (folder / "config.json").read_text()) or "n_routed_experts" in (folder / "config.json").read_text() else {}
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more).eval()


# ---- Comparing -------------------------------------------------------------------------------------------------------


class Report:
    def __init__(self):
        self.problems = []
        self.ties = 0
        self.compared = 0
        self.largest = 0.0

    def close(self, name, expected, got, where=None, tolerance=TOLERANCE):
        self.compared += 1
        got = torch.as_tensor(got)
        if tuple(expected.shape) != tuple(got.shape):
            self.problems.append(f"{name}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
            return
        difference = (got.double() - expected.double()).abs()
        if where is not None:
            difference = difference[where]
        most = float(difference.max()) if difference.numel() else 0.0
        self.largest = max(self.largest, most) if most == most else math.inf
        # Residual streams of hundreds have rounding of their size.
        size = float(expected.abs().max()) if expected.numel() else 0.0
        if not most <= tolerance * max(1.0, size / 30):
            self.problems.append(f"{name}: differs by {most:.3g} of {size:.3g}")


def random_inputs(config, rng, family):
    rows, tokens = rng.choice([1, 2, 3]), rng.randint(3, 16)
    pad = getattr(config, "pad_token_id", None)
    vocab = config.vocab_size
    usable = [i for i in range(vocab) if i != pad]
    ids = torch.tensor([[rng.choice(usable) for _ in range(tokens)] for _ in range(rows)])
    given = {"input_ids": ids}
    causal = family not in ENCODERS and family not in TRANSLATORS
    side = rng.choice(["none", "left", "right"] if causal else ["none", "right"])
    if side != "none":
        mask = torch.ones_like(ids)
        for row in range(1, rows):
            count = rng.randint(0, tokens - 1)
            if count:
                mask[row, :count] = 0
                if side == "right":
                    mask[row] = mask[row].flip(0)
        ids[mask == 0] = pad if pad is not None else 0
        given["attention_mask"] = mask
        if causal and family != "bloom" and maybe(rng):
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    elif causal and family != "bloom" and maybe(rng, 0.3):
        given["position_ids"] = torch.arange(tokens)[None].expand(rows, -1) + torch.arange(rows)[:, None] * 2
    if family in ("bert", "roberta") and maybe(rng):
        given["token_type_ids"] = torch.tensor([[rng.randrange(config.type_vocab_size) for _ in range(tokens)]
                                                for _ in range(rows)])
    if family in ENCODERS and maybe(rng, 0.2):
        given["position_ids"] = torch.randint(2, 30, ids.shape, generator=torch.Generator().manual_seed(tokens))
    if family in TRANSLATORS:
        target = getattr(config, "decoder_vocab_size", None) or vocab
        length = rng.randint(1, 8)
        given["decoder_input_ids"] = torch.tensor([[rng.randrange(target) for _ in range(length)] for _ in range(rows)])
        if maybe(rng, 0.3):
            mask = torch.ones_like(given["decoder_input_ids"])
            for row in range(1, rows):
                mask[row, rng.randint(1, length):] = 0
            given["decoder_attention_mask"] = mask
    return given


def compare_forward(report, theirs, ours, given, family):
    with torch.no_grad():
        out = theirs(**given, output_hidden_states=True, output_attentions=True, return_dict=True, use_cache=False)
    got = ours.forward(**{k: v.numpy() for k, v in given.items()}, capture=("hidden", "attention"))
    mask = given.get("attention_mask")
    source = mask.bool() if mask is not None else torch.ones_like(given["input_ids"]).bool()
    target = given.get("decoder_attention_mask", torch.ones_like(given.get("decoder_input_ids", given["input_ids"])))
    rows = source if family not in TRANSLATORS else target.bool()

    def check(name, expected, where, per_head=False):
        if name not in got:
            report.problems.append(f"{name}: missing")
            return
        if per_head:
            where = where[:, None].expand(expected.shape[:3])
        report.close(name, expected, got[name], where)

    if "logits" in out:
        check("logits", out.logits, rows)
    else:
        check("last_hidden_state", out.last_hidden_state, rows)
    if out.get("pooler_output") is not None:
        check("pooler_output", out.pooler_output, torch.ones(len(out.pooler_output)).bool())
    if family in TRANSLATORS:
        check("encoder_last_hidden_state", out.encoder_last_hidden_state, source)
        groups = {"hidden": ("decoder_hidden_states", rows), "encoder_attention": ("encoder_attentions", source),
                  "decoder_attention": ("decoder_attentions", rows), "cross_attention": ("cross_attentions", rows)}
    else:
        groups = {"hidden": ("hidden_states", rows), "attention": ("attentions", rows)}
    for name, (key, where) in groups.items():
        for i, tensor in enumerate(out[key]):
            check(f"{name}.{i}", tensor, where, "attention" in name)


def gradients_in_file_names(theirs, folder):
    """Gradients under the names of the file: saved as if they were the model."""
    from safetensors.torch import load_file
    holder = copy.deepcopy(theirs)
    with torch.no_grad():
        for (_, p), (_, q) in zip(holder.named_parameters(), theirs.named_parameters()):
            p.copy_(q.grad if q.grad is not None else torch.zeros_like(q))
    holder.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def compare_gradients(report, theirs, ours, given, family, folder):
    rng = random.Random(int(given["input_ids"].sum()))
    count = rng.choice([1, len(given["input_ids"])])
    row = {k: v[:count] for k, v in given.items() if k in ("input_ids", "attention_mask", "token_type_ids", "position_ids")}
    labels = (given["decoder_input_ids"] if family in TRANSLATORS else given["input_ids"])[:count].clone()
    if "attention_mask" in row and family not in TRANSLATORS:
        hidden = row["attention_mask"] == 0
        labels[hidden] = -100
        if family not in ENCODERS:  # nor what only a hidden token predicts
            labels[:, 1:][hidden[:, :-1]] = -100
    if labels.shape[1] < 2:
        return
    labels[0, rng.randrange(1, labels.shape[1])] = -100
    if labels.shape[1] == 2:
        labels = (given["decoder_input_ids"] if family in TRANSLATORS else given["input_ids"])[:count].clone()
    theirs.zero_grad()
    loss = theirs(**row, labels=labels).loss
    loss.backward()
    expected = gradients_in_file_names(theirs, folder)
    got = ours.gradients(**{k: v.numpy() for k, v in row.items()}, labels=labels.numpy())
    if abs(float(got["loss"].reshape(-1)[0]) - float(loss)) > GRADIENT_TOLERANCE * max(1.0, abs(float(loss))):
        report.problems.append(f"loss: {float(got['loss'].reshape(-1)[0])}, expected {float(loss)}")
    steepest = max(float(g.abs().max()) for g in expected.values())
    seen = 0
    for name, value in got.items():
        if not name.startswith("grad."):
            continue
        key = name[5:]
        if key.endswith(BUFFERS):
            continue
        prefix = theirs.base_model_prefix + "."
        key = key if key in expected else prefix + key
        if key not in expected:
            report.problems.append(f"{name}: no such gradient in transformers")
            continue
        seen += 1
        reference = expected[key]
        # Gradients that are 0 in exact arithmetic (biases of keys) are rounding on both sides.
        scale = max(float(reference.abs().max()), 1e-3 * steepest)
        report.close(name, reference / scale, torch.as_tensor(value).float() / scale, tolerance=GRADIENT_TOLERANCE)
    if seen == 0:
        report.problems.append("gradients: none")


def sequence_score(model, prompt, text, family):
    """Log-probability of a continuation."""
    with torch.no_grad():
        if family in TRANSLATORS:
            logits = model(input_ids=prompt, decoder_input_ids=text[None, :-1]).logits[0]
            first = 1
        else:
            logits = model(input_ids=text[None, :-1]).logits[0]
            first = prompt.shape[1]
    scores = torch.log_softmax(logits.double(), -1)
    return float(sum(scores[t - 1, text[t]] for t in range(first, len(text))))


def same_texts(report, name, model, row, expected, got, family, length_penalty=1.0):
    report.compared += 1
    expected, got = torch.as_tensor(expected), torch.as_tensor(got).long()
    if expected.shape == got.shape and torch.equal(expected, got):
        return
    start = 1 if family in TRANSLATORS else row["input_ids"].shape[1]

    def score(text):
        return sequence_score(model, row["input_ids"], text, family) / max(1, len(text) - start) ** length_penalty
    a, b = score(expected[0]), score(got[0])
    if abs(a - b) < TIE:
        report.ties += 1
        return
    report.problems.append(f"{name}: {got[0].tolist()} ({b:.6f}), expected {expected[0].tolist()} ({a:.6f})")


def compare_generation(report, load, ours, given, family, rng):
    """`load` gives transformers' model afresh."""
    row = {k: v[:1] for k, v in given.items() if k == "input_ids"}
    steps = rng.choice([1, 5, 12, 24])
    plain = {"max_new_tokens": steps}
    if maybe(rng, 0.7):
        plain["min_new_tokens"] = rng.choice([steps, max(1, steps - 3)])
    beams = {"num_beams": rng.choice([2, 3, 4, 5]), "length_penalty": rng.choice([1.0, 0.6, 2.0, 0.0, -0.5]),
             "early_stopping": rng.choice([True, False, "never"])}
    penalty = {"repetition_penalty": rng.choice([1.3, 0.7])}
    try:
        load().generate(**row, **plain, do_sample=False)
    except IndexError:  # a decoder with more layers than its encoder: transformers' cache has too few
        return
    for more in ({}, beams, penalty, {**beams, **penalty}):
        expected = load().generate(**row, **plain, **more, do_sample=False)
        got = ours.generate(row["input_ids"].numpy(), **plain, **more)
        same_texts(report, f"generate {plain | more}", load(), row, expected, got, family,
                   more.get("length_penalty", 1.0))
    drawn = random_arguments(load().config, rng, family, row["input_ids"].shape[1], steps)
    same_rows(report, load, ours, row, drawn, family)
    if "attention_mask" in given and family in TRANSLATORS:
        both = {k: given[k] for k in ("input_ids", "attention_mask")}
        same_rows(report, load, ours, both, {**plain, "min_new_tokens": steps}, family)
        same_rows(report, load, ours, both, {**plain, **beams}, family)
    if "attention_mask" in given and bool((given["attention_mask"][:, -1] == 1).all()):
        for more in (beams, penalty | {"no_repeat_ngram_size": 2}):
            both = {k: given[k] for k in ("input_ids", "attention_mask")}
            same_rows(report, load, ours, both, plain | more, family)
        both = {k: given[k] for k in ("input_ids", "attention_mask")}
        whole = load().generate(**both, **plain, do_sample=False)
        mine = ours.generate(both["input_ids"].numpy(), attention_mask=both["attention_mask"].numpy(), **plain)
        report.compared += 1
        if tuple(whole.shape) != tuple(mine.shape) or not torch.equal(whole, torch.as_tensor(mine).long()):
            report.problems.append(f"batch {plain}: {mine.tolist()}, expected {whole.tolist()}")


def random_arguments(config, rng, family, tokens, steps):
    """What a caller may say in place of the folder."""
    target = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    some = {"suppress_tokens": rng.sample(range(target), 5), "begin_suppress_tokens": rng.sample(range(target), 9),
            "bad_words_ids": [[rng.randrange(target)], [rng.randrange(target), rng.randrange(target)]],
            "no_repeat_ngram_size": rng.choice([1, 2, 3]), "min_length": rng.choice([5, 20]),
            "repetition_penalty": 1.2, "eos_token_id": rng.sample(range(target), rng.choice([1, 2, 3])),
            "pad_token_id": rng.randrange(target), "forced_eos_token_id": rng.randrange(target),
            "max_length": (1 if family in TRANSLATORS else tokens) + steps}
    if family in TRANSLATORS:
        some |= {"decoder_start_token_id": rng.randrange(target), "forced_bos_token_id": rng.randrange(target),
                 "decoder_input_ids": [[rng.randrange(target) for _ in range(rng.choice([1, 3]))]]}
    drawn = {key: some[key] for key in rng.sample(sorted(some), 4)}
    if "decoder_input_ids" in drawn:
        drawn.pop("max_length", None)
    if "max_length" not in drawn:
        drawn["max_new_tokens"] = steps
    if maybe(rng):
        beams = rng.choice([2, 3, 4])
        drawn |= {"num_beams": beams, "num_return_sequences": rng.randint(1, beams),
                  "early_stopping": rng.choice([True, False, "never"])}
    return drawn


def same_rows(report, load, ours, inputs, arguments, family):
    """Many rows, each token for token or of the same score."""
    if "decoder_input_ids" in arguments:
        arguments = {**arguments, "decoder_input_ids": torch.tensor(arguments["decoder_input_ids"])}
    expected = load().generate(**inputs, **arguments, do_sample=False)
    got = torch.as_tensor(ours.generate(**{k: v.numpy() if torch.is_tensor(v) else v for k, v in
                                           {**inputs, **arguments}.items()})).long()
    report.compared += 1
    if expected.shape == got.shape and torch.equal(expected, got):
        return
    report.problems.append(f"generate {arguments}: {got.tolist()}, expected {expected.tolist()}")


def compare_saved(report, kind, theirs, ours, given, family, folder):
    ours.save(folder)
    again = load_theirs(kind, folder)
    with torch.no_grad():
        a, b = theirs(**given, **no_cache(family)), again(**given, **no_cache(family))
    key = "logits" if "logits" in a else "last_hidden_state"
    report.close("saved " + key, a[key], b[key], tolerance=1e-6)


def run_case(family, seed, number, scratch):
    rng = random.Random(f"{family} {seed} {number}")
    folder = scratch / f"{family}-{seed}-{number}"
    report = Report()
    try:
        kind, fields, notes = make(family, rng, 1000 * seed + number, folder)
        theirs = load_theirs(kind, folder)
        given = random_inputs(theirs.config, rng, family)
        with torch.no_grad():
            theirs(**given, **no_cache(family))
    except Exception as error:  # noqa: BLE001
        shutil.rmtree(folder, ignore_errors=True)
        return "not made", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160], report, {}
    about = {"notes": notes, "fields": fields}
    try:
        ours = heed.load(folder)
    except heed.Error as error:
        return "refused", str(error).partition(": ")[2] or str(error), report, about
    if about["fields"].get("hidden_act") in RARE_ACTIVATIONS and family != "gpt_oss":
        report.problems.append("an activation that heed does not have: loaded")
    if kind.__name__ not in FAMILIES[family][1:3]:
        report.problems.append(f"{kind.__name__}: loaded, expected to be refused")
        return "different", "", report, about
    if ours.unused_tensors:
        report.problems.append(f"unused tensors: {ours.unused_tensors[:4]}")
    try:
        compare_forward(report, theirs, ours, given, family)
        if kind.__name__ == FAMILIES[family][1]:
            compare_gradients(report, load_theirs(kind, folder), ours, given, family, scratch / "gradients")
            if family not in ENCODERS:
                compare_generation(report, lambda: load_theirs(kind, folder), ours, given, family, rng)
        compare_saved(report, kind, load_theirs(kind, folder), ours, given, family, scratch / "saved")
    except heed.Error as error:
        report.problems.append(f"heed.Error: {error}")
    return ("different" if report.problems else "equal"), "", report, about


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="families, or FAMILY-SEED-NUMBER of single cases")
    parser.add_argument("--kernel", help="HEED_KERNEL for all of heed, such as reference")
    parser.add_argument("--keep", type=pathlib.Path, help="where folders of differing models stay")
    arguments = parser.parse_args()
    if arguments.kernel:
        os.environ["HEED_KERNEL"] = arguments.kernel
    global heed, torch, transformers
    import heed
    import torch
    import transformers
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    counts, refusals, ties, compared, largest = collections.Counter(), collections.Counter(), 0, 0, 0.0
    cases = [(f, s, n) for s in arguments.seeds for f in FAMILIES for n in range(arguments.each)]
    if arguments.only:
        single = [tuple(x.rsplit("-", 2)) for x in arguments.only if "-" in x]
        cases = [c for c in cases if c[0] in arguments.only] + [(f, int(s), int(n)) for f, s, n in single]
    with tempfile.TemporaryDirectory() as scratch:
        for family, seed, number in cases:
            where = arguments.keep or pathlib.Path(scratch)
            verdict, why, report, about = run_case(family, seed, number, where)
            counts[verdict] += 1
            ties, compared, largest = ties + report.ties, compared + report.compared, max(largest, report.largest)
            if verdict == "refused":
                refusals[f"{family}: {why}"] += 1
            print(f"{family}-{seed}-{number}", verdict, why, *about.get("notes", []), flush=True)
            if verdict == "different":
                for problem in report.problems[:6]:
                    print("    ", problem, flush=True)
                print("     drawn:", json.dumps(about["fields"]), flush=True)
            elif arguments.keep:
                shutil.rmtree(where / f"{family}-{seed}-{number}", ignore_errors=True)
    print(dict(counts), f"{compared} comparisons, largest difference {largest:.2g}, {ties} ties between equal scores")
    for why, count in sorted(refusals.items()):
        print(f"  refused {count}x {why}")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
