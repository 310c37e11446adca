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

TOLERANCE = 2e-4
GRADIENT_TOLERANCE = 1e-3
TIE = 1e-4

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python", "gelu_python_tanh",
               "relu", "silu", "swish", "quick_gelu", "tanh", "sigmoid", "linear")
RARE_ACTIVATIONS = ("relu2", "relu6", "hardswish", "leaky_relu", "mish", "gelu_10", "laplace")
BUFFERS = ("e_score_correction_bias", "final_logits_bias")  # of transformers, which therefore has no gradients of them
ENCODERS = ("bert", "roberta", "modernbert")
TRANSLATORS = ("bart", "marian", "t5")


def maybe(rng, share=0.5):
    return rng.random() < share


def activation(rng):
    return rng.choice(RARE_ACTIVATIONS if maybe(rng, 0.05) else ACTIVATIONS)


def special_tokens(rng, vocab):
    """Ids anywhere in the vocabulary, all different."""
    pad, bos, eos, start = rng.sample(range(vocab), 4)
    return {"pad_token_id": pad, "bos_token_id": bos, "eos_token_id": eos, "decoder_start_token_id": start}


def decoder_tokens(rng, vocab):
    ids = special_tokens(rng, vocab)
    del ids["decoder_start_token_id"]
    if maybe(rng, 0.3):
        ids["eos_token_id"] = [ids["eos_token_id"], (ids["eos_token_id"] + 1) % vocab]
    if maybe(rng, 0.2):
        ids["pad_token_id"] = None
    return ids


def epsilon(rng):
    return rng.choice([1e-12, 1e-6, 1e-5, 1e-3])


def rope(rng, rotated, kinds=("default", "linear", "dynamic", "yarn", "llama3", "longrope")):
    kind = rng.choice(kinds)
    r = {"rope_type": kind, "rope_theta": rng.choice([100.0, 10000.0, 54321.0, 1e6])}
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        r["factor"] = rng.choice([1.0, 1.5, 3.7, 8.0])
    if kind == "yarn":
        for key, values in {"beta_fast": [16, 32.0], "beta_slow": [1, 2.5], "truncate": [True, False],
                            "mscale": [0.7, 1.0], "mscale_all_dim": [0.3, 1.0], "attention_factor": [0.9, 1.3],
                            "original_max_position_embeddings": [8, 16, 40]}.items():
            if maybe(rng, 0.35):
                r[key] = rng.choice(values)
    if kind == "llama3":
        r |= {"low_freq_factor": rng.choice([1.0, 0.5]), "high_freq_factor": rng.choice([4.0, 2.5]),
              "original_max_position_embeddings": rng.choice([8, 20, 32])}
    if kind == "longrope":
        r |= {"short_factor": [round(rng.uniform(1, 2), 3) for _ in range(rotated // 2)],
              "long_factor": [round(rng.uniform(1, 6), 3) for _ in range(rotated // 2)],
              "original_max_position_embeddings": rng.choice([6, 12, 40])}
        if maybe(rng):
            r["factor"] = rng.choice([1.5, 4.0])
        if maybe(rng, 0.3):
            r["attention_factor"] = 1.1
    return r


def llama_like(rng, own_head=True, biases=(), **more):
    kv_heads = rng.choice([1, 2, 3, 5])
    heads = kv_heads * rng.choice([1, 2, 3, 4])
    head = rng.choice([4, 6, 10, 16, 18])
    vocab = rng.choice([23, 40, 67, 129])
    c = {"vocab_size": vocab, "hidden_size": heads * head, "intermediate_size": rng.choice([7, 22, 33, 64]),
         "num_hidden_layers": rng.choice([1, 2, 3, 5]), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
         "max_position_embeddings": rng.choice([10, 64, 100]), "rms_norm_eps": epsilon(rng),
         "hidden_act": activation(rng), "tie_word_embeddings": maybe(rng), **decoder_tokens(rng, vocab)}
    if own_head and maybe(rng):
        c["hidden_size"] = heads * rng.choice([3, 5, 8])
        c["head_dim"] = head
    for key in biases:
        c[key] = maybe(rng)
    c["rope_parameters"] = rope(rng, head)
    c.update(more)
    return c


def layer_types(rng, layers):
    return [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]


def llama(rng):
    c = llama_like(rng, biases=("attention_bias", "mlp_bias"))
    if maybe(rng, 0.2):
        c["pretraining_tp"] = 2
    return c


def mistral(rng):
    return llama_like(rng, sliding_window=rng.choice([None, 1, 3, 5, 40]))


def mixtral(rng):
    experts = rng.choice([2, 3, 5, 8])
    c = llama_like(rng, sliding_window=rng.choice([None, 3, 5]), num_local_experts=experts,
                   num_experts_per_tok=rng.randint(1, min(3, experts)), router_jitter_noise=0.1)
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    return c


def qwen(rng, **more):
    c = llama_like(rng, **more)
    c |= {"use_sliding_window": maybe(rng), "sliding_window": rng.choice([2, 3, 5, 40]),
          "max_window_layers": rng.choice([0, 1, 2, 28])}
    if maybe(rng, 0.3) and c["use_sliding_window"]:
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def qwen3(rng):
    c = qwen(rng, biases=("attention_bias",))
    c.setdefault("head_dim", rng.choice([6, 16]))
    c["rope_parameters"] = rope(rng, c["head_dim"])
    return c


def olmo2(rng):
    return llama_like(rng, biases=("attention_bias",))


def phi3(rng):
    c = llama_like(rng, own_head=False, sliding_window=rng.choice([None, 3, 5]),
                   original_max_position_embeddings=rng.choice([6, 12, 15, 64]))
    head = c["hidden_size"] // c["num_attention_heads"]
    share = rng.choice([1.0, 0.5]) if head % 4 == 0 else 1.0
    r = rope(rng, int(head * share), kinds=("default", "longrope"))
    r.pop("original_max_position_embeddings", None)
    c["rope_parameters"] = r | {"partial_rotary_factor": share}
    return c


def gemma2(rng):
    c = llama_like(rng, biases=("attention_bias",), sliding_window=rng.choice([2, 3, 5, 40]),
                   query_pre_attn_scalar=rng.choice([3, 16, 37]), attn_logit_softcapping=rng.choice([None, 2.0, 50.0]),
                   final_logit_softcapping=rng.choice([None, 3.5, 30.0]))
    c["hidden_activation"] = c.pop("hidden_act")
    c.setdefault("head_dim", rng.choice([6, 16]))
    c["rope_parameters"] = rope(rng, c["head_dim"])
    if maybe(rng, 0.4):
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def gpt_oss(rng):
    experts = rng.choice([2, 3, 5, 8])
    c = llama_like(rng, biases=("attention_bias",), sliding_window=rng.choice([2, 3, 5, 40]), num_local_experts=experts,
                   num_experts_per_tok=rng.randint(1, min(4, experts)), swiglu_limit=rng.choice([0.5, 2.0, 7.0]),
                   swiglu_alpha=rng.choice([1.0, 1.702]))
    c.setdefault("head_dim", rng.choice([6, 16]))
    c["rope_parameters"] = rope(rng, c["head_dim"])
    if maybe(rng, 0.4):
        c["layer_types"] = layer_types(rng, c["num_hidden_layers"])
    return c


def deepseek(rng, version):
    groups = rng.choice([1, 2, 3])
    each = rng.choice([2, 3, 4])
    experts = groups * each
    top_groups = rng.randint(1, groups)
    rotated = rng.choice([4, 6, 8])
    c = llama_like(rng, own_head=False, biases=("attention_bias",), q_lora_rank=rng.choice([None, 5, 10, 14]),
                   kv_lora_rank=rng.choice([4, 8, 12]), qk_nope_head_dim=rng.choice([6, 8, 10] if version == 2 else [5, 6, 8]),
                   qk_rope_head_dim=rotated, v_head_dim=rng.choice([3, 6, 10]), n_routed_experts=experts,
                   num_experts_per_tok=rng.randint(1, top_groups * each), n_shared_experts=rng.choice([1, 2, 3]),
                   moe_intermediate_size=rng.choice([5, 12]), first_k_dense_replace=rng.choice([0, 1, 2]),
                   routed_scaling_factor=rng.choice([1.0, 1.7, 2.5]), n_group=groups, topk_group=top_groups,
                   norm_topk_prob=maybe(rng))
    c["num_key_value_heads"] = c["num_attention_heads"]
    c["rope_parameters"] = rope(rng, rotated)
    if c["rope_parameters"]["rope_type"] == "longrope":
        c["rope_parameters"].setdefault("factor", 2.0)
    if version == 2:
        c["topk_method"] = rng.choice(["greedy", "group_limited_greedy"])
        c["mlp_bias"] = maybe(rng)
    else:
        c["rope_interleave"] = maybe(rng)
    return c


def gpt2(rng):
    heads, head, vocab = rng.choice([1, 3, 4]), rng.choice([3, 8, 10]), rng.choice([23, 40, 67])
    return {"vocab_size": vocab, "n_embd": heads * head, "n_layer": rng.choice([1, 2, 3]), "n_head": heads,
            "n_positions": 80, "n_inner": rng.choice([None, 9, 30]), "activation_function": activation(rng),
            "layer_norm_epsilon": epsilon(rng), "scale_attn_weights": maybe(rng, 0.7),
            "scale_attn_by_inverse_layer_idx": maybe(rng), "reorder_and_upcast_attn": maybe(rng, 0.3),
            "tie_word_embeddings": maybe(rng, 0.6), **decoder_tokens(rng, vocab)}


def bloom(rng):
    heads, head, vocab = rng.choice([1, 3, 4, 6]), rng.choice([3, 8, 10]), rng.choice([23, 40, 67])
    return {"vocab_size": vocab, "hidden_size": heads * head, "n_layer": rng.choice([1, 2, 3]), "n_head": heads,
            "layer_norm_epsilon": epsilon(rng), "apply_residual_connection_post_layernorm": maybe(rng, 0.4),
            "tie_word_embeddings": maybe(rng, 0.6), **decoder_tokens(rng, vocab)}


def gpt_neox(rng):
    heads, head, vocab = rng.choice([1, 3, 4]), rng.choice([8, 12, 16]), rng.choice([23, 40, 67])
    share = rng.choice([0.25, 0.5, 1.0])
    return {"vocab_size": vocab, "hidden_size": heads * head, "intermediate_size": rng.choice([9, 30]),
            "num_hidden_layers": rng.choice([1, 2, 3]), "num_attention_heads": heads, "hidden_act": activation(rng),
            "max_position_embeddings": rng.choice([10, 64]), "layer_norm_eps": epsilon(rng),
            "use_parallel_residual": maybe(rng), "attention_bias": maybe(rng), "tie_word_embeddings": maybe(rng),
            "rope_parameters": rope(rng, int(head * share)) | {"partial_rotary_factor": share},
            **decoder_tokens(rng, vocab)}


def bert_like(rng):
    heads, head, vocab = rng.choice([1, 3, 4]), rng.choice([3, 8, 10]), rng.choice([23, 40, 67])
    return {"vocab_size": vocab, "hidden_size": heads * head, "intermediate_size": rng.choice([9, 30]),
            "num_hidden_layers": rng.choice([1, 2, 3]), "num_attention_heads": heads, "hidden_act": activation(rng),
            "max_position_embeddings": rng.choice([60, 90]), "type_vocab_size": rng.choice([1, 2, 3]),
            "layer_norm_eps": epsilon(rng), "tie_word_embeddings": maybe(rng, 0.6),
            "pad_token_id": rng.randrange(vocab) if vocab < 40 else rng.randrange(4)}


def modernbert(rng):
    heads, head, vocab = rng.choice([1, 3, 4]), rng.choice([4, 8, 10]), rng.choice([23, 40, 67])
    layers = rng.choice([1, 3, 4])
    c = {"vocab_size": vocab, "hidden_size": heads * head, "intermediate_size": rng.choice([9, 30]),
         "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_activation": activation(rng),
         "norm_eps": epsilon(rng), "tie_word_embeddings": maybe(rng, 0.6), "pad_token_id": rng.randrange(vocab),
         "local_attention": rng.choice([2, 3, 5, 6, 20]), "classifier_activation": activation(rng),
         "rope_parameters": {kind: rope(rng, head, ("default", "linear", "yarn")) for kind in
                             ("full_attention", "sliding_attention")},
         "bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0, "sep_token_id": 1}
    for key in ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias"):
        c[key] = maybe(rng)
    if maybe(rng):
        c["layer_types"] = layer_types(rng, layers)
    else:
        c["global_attn_every_n_layers"] = rng.choice([1, 2, 3])
    return c


def translator(rng):
    width = rng.choice([12, 24, 30])
    heads = [h for h in (1, 2, 3, 6) if width % h == 0]
    vocab = rng.choice([23, 40, 67])
    return {"vocab_size": vocab, "d_model": width, "encoder_layers": rng.choice([1, 2, 3]),
            "decoder_layers": rng.choice([1, 2, 3]), "encoder_attention_heads": rng.choice(heads),
            "decoder_attention_heads": rng.choice(heads), "encoder_ffn_dim": rng.choice([9, 30]),
            "decoder_ffn_dim": rng.choice([9, 30]), "max_position_embeddings": 80,
            "activation_function": activation(rng), "scale_embedding": maybe(rng),
            "forced_eos_token_id": None, **special_tokens(rng, vocab)}


def bart(rng):
    c = translator(rng)
    c["tie_word_embeddings"] = maybe(rng, 0.7)
    if maybe(rng, 0.4):
        c["forced_eos_token_id"] = c["eos_token_id"]
    if maybe(rng, 0.3):
        c["forced_bos_token_id"] = c["bos_token_id"]
    return c


def marian(rng):
    c = translator(rng)
    c["tie_word_embeddings"] = maybe(rng, 0.8)
    c["share_encoder_decoder_embeddings"] = maybe(rng, 0.6)
    if not c["share_encoder_decoder_embeddings"]:
        c["decoder_vocab_size"] = rng.choice([c["vocab_size"], c["vocab_size"] + 9])
    if maybe(rng, 0.4):
        c["forced_eos_token_id"] = c["eos_token_id"]
    return c


def t5(rng):
    vocab = rng.choice([23, 40, 67])
    proj = rng.choice(["relu", "gated-gelu", "gated-silu", "gelu", "gated-relu", "gelu_new", "gated-" + activation(rng)])
    buckets = rng.choice([8, 10, 16, 32])
    return {"vocab_size": vocab, "d_model": rng.choice([9, 14, 30]), "d_kv": rng.choice([3, 8, 10]),
            "d_ff": rng.choice([9, 30]), "num_layers": rng.choice([1, 2, 3]),
            "num_decoder_layers": rng.choice([None, 1, 2, 3]), "num_heads": rng.choice([1, 3, 4]),
            "relative_attention_num_buckets": buckets, "relative_attention_max_distance": rng.choice([17, 20, 128]),
            "feed_forward_proj": proj, "layer_norm_epsilon": epsilon(rng), "tie_word_embeddings": maybe(rng),
            **special_tokens(rng, vocab)}


# family: how to draw a configuration, class with a language head, class without, classes that must be refused
FAMILIES = {
    "bart": (bart, "BartForConditionalGeneration", "BartModel", ["BartForCausalLM", "BartForSequenceClassification"]),
    "bert": (bert_like, "BertForMaskedLM", "BertModel",
             ["BertForSequenceClassification", "BertForTokenClassification", "BertForNextSentencePrediction"]),
    "bloom": (bloom, "BloomForCausalLM", "BloomModel", ["BloomForSequenceClassification"]),
    "deepseek_v2": (lambda r: deepseek(r, 2), "DeepseekV2ForCausalLM", "DeepseekV2Model",
                    ["DeepseekV2ForSequenceClassification"]),
    "deepseek_v3": (lambda r: deepseek(r, 3), "DeepseekV3ForCausalLM", "DeepseekV3Model",
                    ["DeepseekV3ForSequenceClassification"]),
    "gemma2": (gemma2, "Gemma2ForCausalLM", "Gemma2Model", ["Gemma2ForTokenClassification"]),
    "gpt2": (gpt2, "GPT2LMHeadModel", "GPT2Model", ["GPT2ForSequenceClassification", "GPT2DoubleHeadsModel"]),
    "gpt_neox": (gpt_neox, "GPTNeoXForCausalLM", "GPTNeoXModel", ["GPTNeoXForQuestionAnswering"]),
    "gpt_oss": (gpt_oss, "GptOssForCausalLM", "GptOssModel", ["GptOssForSequenceClassification"]),
    "llama": (llama, "LlamaForCausalLM", "LlamaModel", ["LlamaForSequenceClassification"]),
    "marian": (marian, "MarianMTModel", "MarianModel", ["MarianForCausalLM"]),
    "mistral": (mistral, "MistralForCausalLM", "MistralModel", ["MistralForTokenClassification"]),
    "mixtral": (mixtral, "MixtralForCausalLM", "MixtralModel", ["MixtralForSequenceClassification"]),
    "modernbert": (modernbert, "ModernBertForMaskedLM", "ModernBertModel", ["ModernBertForSequenceClassification"]),
    "olmo2": (olmo2, "Olmo2ForCausalLM", "Olmo2Model", ["Olmo2ForSequenceClassification"]),
    "phi3": (phi3, "Phi3ForCausalLM", "Phi3Model", ["Phi3ForSequenceClassification"]),
    "qwen2": (qwen, "Qwen2ForCausalLM", "Qwen2Model", ["Qwen2ForSequenceClassification"]),
    "qwen3": (qwen3, "Qwen3ForCausalLM", "Qwen3Model", ["Qwen3ForQuestionAnswering"]),
    "roberta": (bert_like, "RobertaForMaskedLM", "RobertaModel", ["RobertaForSequenceClassification"]),
    "t5": (t5, "T5ForConditionalGeneration", "T5Model", ["T5EncoderModel"]),
}


# ---- Making ----------------------------------------------------------------------------------------------------------


def random_weights(model, family, seed):
    """Far from where training begins, so that whatever is mixed up shows."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda p: torch.randn(p.shape, generator=generator)  # noqa: E731
    with torch.no_grad():
        for name, p in model.named_parameters():
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
    return given


def compare_forward(report, theirs, ours, given, family, kernel_name=""):
    with torch.no_grad():
        out = theirs(**given, output_hidden_states=True, output_attentions=True, return_dict=True, use_cache=False)
    got = ours.forward(**{k: v.numpy() for k, v in given.items()}, capture=("hidden", "attention"))
    mask = given.get("attention_mask")
    source = mask.bool() if mask is not None else torch.ones_like(given["input_ids"]).bool()
    rows = source if family not in TRANSLATORS else torch.ones_like(given["decoder_input_ids"]).bool()

    def check(name, expected, where, per_head=False):
        if name not in got:
            report.problems.append(f"{name}: missing")
            return
        if per_head:
            where = where[:, None].expand(expected.shape[:3])
        report.close(kernel_name + name, expected, got[name], where)

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
    rng = random.Random(7)
    row = {k: v[:1] for k, v in given.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    labels = (given["decoder_input_ids"] if family in TRANSLATORS else given["input_ids"])[:1].clone()
    if labels.shape[1] < 2:
        return
    labels[0, rng.randrange(1, labels.shape[1])] = -100
    if labels.shape[1] == 2:
        labels = (given["decoder_input_ids"] if family in TRANSLATORS else given["input_ids"])[:1].clone()
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


def sequence_score(model, prompt, text, family, restricted):
    """Log-probability of a continuation, with the tokens that are not allowed left out."""
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
        text = text.clone()
        return sequence_score(model, row["input_ids"], text, family, None) / max(1, len(text) - start) ** length_penalty
    a, b = score(expected[0]), score(got[0])
    if abs(a - b) < TIE:
        report.ties += 1
        return
    report.problems.append(f"{name}: {got[0].tolist()} ({b:.6f}), expected {expected[0].tolist()} ({a:.6f})")


def compare_generation(report, load, ours, given, family, rng):
    """`load` gives transformers' model afresh."""
    row = {k: v[:1] for k, v in given.items() if k == "input_ids"}
    steps = rng.choice([1, 5, 12, 24])
    plain = {"max_new_tokens": steps, "min_new_tokens": rng.choice([0, steps, max(0, steps - 3)])}
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
    if "attention_mask" in given and bool((given["attention_mask"][:, -1] == 1).all()):
        both = {k: given[k] for k in ("input_ids", "attention_mask")}
        whole = load().generate(**both, **plain, do_sample=False)
        mine = ours.generate(both["input_ids"].numpy(), attention_mask=both["attention_mask"].numpy(), **plain)
        report.compared += 1
        if tuple(whole.shape) != tuple(mine.shape) or not torch.equal(whole, torch.as_tensor(mine).long()):
            report.problems.append(f"batch {plain}: {mine.tolist()}, expected {whole.tolist()}")


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
