#!/usr/bin/env python3
"""Tiny checkpoints with random weights and what transformers computes from them.

    make_models.py FOLDER [--seed N] [--large] [--only NAME ...]

FOLDER/NAME gets config.json, model.safetensors and expected.safetensors: inputs, logits, hidden.N, attention.N
(encoder_attention.N, decoder_attention.N, cross_attention.N), greedy, beamK, loss and grad.PARAMETER. Sizes follow from
the seed, odd ones on purpose. data/models was made with seed 1 by transformers 5.22.2 and torch 2.15.0, the last six by 5.23.
"""
import argparse
import json
import pathlib
import random

import torch
import transformers
from safetensors.torch import save_file

NEW_TOKENS = 12
LARGE = False


def sizes(rng):
    """Small, so that the files are, unless the machine has the time (--large)."""
    head = rng.choice([16, 24, 32] if LARGE else [4, 6])
    kv_heads = rng.choice([1, 2, 3] if LARGE else [1, 2])
    heads = kv_heads * rng.choice([1, 2, 3] if LARGE else [1, 2])
    return {"head": head, "heads": heads, "kv_heads": kv_heads, "ffn": rng.choice([100, 172] if LARGE else [10, 14]),
            "layers": rng.choice([2, 3, 4] if LARGE else [1, 2]), "vocab": rng.choice([301, 512] if LARGE else [23, 30])}


def decoder(name, rng, own_width=False, **more):
    """A configuration in the keys of Llama and what came from it."""
    s = sizes(rng)
    keys = {"vocab_size": s["vocab"], "hidden_size": s["head"] * s["heads"], "intermediate_size": s["ffn"],
            "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
            "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2}
    if own_width:
        keys["hidden_size"] = rng.choice([60, 84] if LARGE else [14, 18])
        keys["head_dim"] = s["head"]
    keys.update(more)
    return transformers.AutoConfig.for_model(name, **keys)


def aligned():
    """torch's products of experts want rows of whole 16 bytes."""
    return {} if LARGE else {"hidden_size": 16, "intermediate_size": 12, "head_dim": 8}


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


def encoder(name, rng, **more):
    s = sizes(rng)
    return transformers.AutoConfig.for_model(name, **{
        "vocab_size": s["vocab"], "hidden_size": s["head"] * s["heads"], "intermediate_size": s["ffn"],
        "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "max_position_embeddings": 64,
        "initializer_range": 0.2, **more})


def translator(name, rng, **more):
    s = sizes(rng)
    encoder_heads = rng.choice([h for h in (1, 2, 3, 4, 6) if (s["head"] * s["heads"]) % h == 0])
    return transformers.AutoConfig.for_model(name, **{
        "vocab_size": s["vocab"], "d_model": s["head"] * s["heads"], "encoder_layers": s["layers"],
        "decoder_layers": rng.randint(1, s["layers"]), "encoder_attention_heads": encoder_heads,
        "decoder_attention_heads": s["heads"], "encoder_ffn_dim": s["ffn"], "decoder_ffn_dim": s["ffn"] + 4,
        "max_position_embeddings": 64, "init_std": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 3, "forced_eos_token_id": None, **more})


def t5(rng, **more):
    s = sizes(rng)
    return transformers.AutoConfig.for_model("t5", **{
        "vocab_size": s["vocab"], "d_model": rng.choice([60, 84] if LARGE else [14, 18]), "d_kv": s["head"], "d_ff": s["ffn"],
        "num_layers": s["layers"], "num_decoder_layers": rng.randint(1, s["layers"]), "num_heads": s["heads"],
        "relative_attention_num_buckets": rng.choice([8, 16, 32]), "relative_attention_max_distance": 20,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2, **more})


def gpt2(rng, **more):
    s = sizes(rng)
    return transformers.AutoConfig.for_model("gpt2", **{
        "vocab_size": s["vocab"], "n_embd": s["head"] * s["heads"], "n_layer": s["layers"], "n_head": s["heads"],
        "n_positions": 64, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **more})


def bloom(rng, **more):
    s = sizes(rng)
    return transformers.AutoConfig.for_model("bloom", vocab_size=s["vocab"], hidden_size=s["head"] * s["heads"],
                                             n_layer=s["layers"], n_head=s["heads"], initializer_range=0.2,
                                             pad_token_id=0, bos_token_id=1, eos_token_id=2, **more)


def longrope(rng):
    """A text grows beyond the trained length while it is generated."""
    config = decoder("phi3", rng, original_max_position_embeddings=14)
    half = config.hidden_size // config.num_attention_heads // 2
    config.rope_parameters = rope("longrope", short_factor=[1.0 + 0.1 * i for i in range(half)], factor=4.0,
                                  long_factor=[2.0 + i for i in range(half)], partial_rotary_factor=1.0,
                                  original_max_position_embeddings=14)
    return config


def neox(rng, **more):
    s = sizes(rng)
    return transformers.AutoConfig.for_model("gpt_neox", **{
        "vocab_size": s["vocab"], "hidden_size": 8 * s["heads"], "intermediate_size": s["ffn"],
        "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "max_position_embeddings": 64,
        "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": rope("default", partial_rotary_factor=rng.choice([0.25, 0.5, 1.0])), **more})


def deepseek(name, rng, **more):
    keys = {"q_lora_rank": rng.choice([None, 10, 14]), "kv_lora_rank": rng.choice([8, 12]),
            "qk_nope_head_dim": rng.choice([6, 8]), "qk_rope_head_dim": rng.choice([4, 6]),
            "v_head_dim": rng.choice([6, 10]), "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "moe_intermediate_size": 12, "first_k_dense_replace": 1, "num_hidden_layers": 2}
    keys.update(aligned(), **more)
    keys.pop("head_dim", None)
    config = decoder(name, rng, **keys)
    config.num_key_value_heads = config.num_attention_heads
    return config


MODELS = {
    "bart": lambda r: translator("bart", r),
    "bart-scaled": lambda r: translator("bart", r, scale_embedding=True, activation_function="relu"),
    "bert": lambda r: encoder("bert", r),
    "bloom-alibi": bloom,
    "deepseek-v2-mla": lambda r: deepseek("deepseek_v2", r),
    "deepseek-v2-groups": lambda r: deepseek("deepseek_v2", r, topk_method="group_limited_greedy", n_group=3,
                                             topk_group=2, routed_scaling_factor=1.5),
    "deepseek-v3-experts": lambda r: deepseek("deepseek_v3", r, n_group=2, topk_group=1),
    "deepseek-v3-yarn": lambda r: deepseek("deepseek_v3", r, n_group=1, topk_group=1, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.7)),
    "gemma2-softcap": lambda r: decoder("gemma2", r, own_width=True, sliding_window=5, query_pre_attn_scalar=9),
    "gpt-neox": neox,
    "gpt-neox-serial": lambda r: neox(r, use_parallel_residual=False),
    "gpt-oss-sinks": lambda r: decoder("gpt_oss", r, own_width=True, sliding_window=5, num_local_experts=5,
                                       num_experts_per_tok=2, **aligned()),
    "gpt2": gpt2,
    "gpt2-scaled": lambda r: gpt2(r, scale_attn_by_inverse_layer_idx=True, n_inner=30, activation_function="relu"),
    "llama": lambda r: decoder("llama", r, own_width=True),
    "llama-tied-biased": lambda r: decoder("llama", r, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama-dynamic": lambda r: decoder("llama", r, max_position_embeddings=14,
                                       rope_parameters=rope("dynamic", factor=2.0)),
    "llama-linear": lambda r: decoder("llama", r, rope_parameters=rope("linear", factor=4.0)),
    "llama-llama3": lambda r: decoder("llama", r, rope_parameters=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
    "llama-yarn": lambda r: decoder("llama", r, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)),
    "marian": lambda r: translator("marian", r, scale_embedding=True, activation_function="swish"),
    "mistral-window": lambda r: decoder("mistral", r, own_width=True, sliding_window=5),
    "mixtral-experts": lambda r: decoder("mixtral", r, num_local_experts=5, num_experts_per_tok=2, **aligned()),
    "modernbert": lambda r: encoder("modernbert", r, local_attention=6, num_hidden_layers=4, pad_token_id=0),
    "olmo2": lambda r: decoder("olmo2", r),
    "phi3": lambda r: decoder("phi3", r),
    "qwen2": lambda r: decoder("qwen2", r),
    "qwen2-window": lambda r: decoder("qwen2", r, use_sliding_window=True, sliding_window=5, max_window_layers=1,
                                      num_hidden_layers=3),
    "qwen3": lambda r: decoder("qwen3", r, own_width=True, tie_word_embeddings=True),
    "roberta": lambda r: encoder("roberta", r, pad_token_id=1, type_vocab_size=1),
    "t5": t5,
    "t5-gated": lambda r: t5(r, feed_forward_proj="gated-gelu"),
    # New ones at the end: the random numbers of the others follow from their places.
    "bart-untied": lambda r: translator("bart", r, tie_word_embeddings=False),
    "bert-untied": lambda r: encoder("bert", r, tie_word_embeddings=False),
    "bloom-normed": lambda r: bloom(r, apply_residual_connection_post_layernorm=True),
    "gpt2-rules": gpt2,
    "marian-two-tables": lambda r: translator("marian", r, share_encoder_decoder_embeddings=False,
                                              decoder_vocab_size=37),
    "phi3-longrope": longrope,
}

# What generation_config.json asks for, beyond special tokens.
GENERATION = {"gpt2-rules": {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 9, 17], "begin_suppress_tokens": [3, 4, 6],
                             "bad_words_ids": [[7], [11, 12], [2]], "min_length": 15}}


def build(name, config, seed):
    torch.manual_seed(seed)
    kind = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else
            transformers.AutoModelForMaskedLM if config.model_type in ("bert", "roberta", "modernbert") else
            transformers.AutoModelForCausalLM)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # norms and biases that are not at their start values, so that mixing them up shows
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1 or "bias" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for key, buffer in model.named_buffers():
            if key.endswith(("e_score_correction_bias", "final_logits_bias")):
                buffer.add_(torch.randn_like(buffer) * 0.1)
        if config.model_type == "t5":
            model.shared.weight.mul_(0.3)
    for key, value in GENERATION.get(name, {}).items():
        setattr(model.generation_config, key, value)
    return model


def inputs_of(config, rng):
    tokens, pad = 10, config.pad_token_id
    usable = [i for i in range(3, config.vocab_size)]
    ids = torch.tensor([[rng.choice(usable) for _ in range(tokens)] for _ in range(2)])
    mask = torch.ones_like(ids)
    result = {"input_ids": ids, "attention_mask": mask}
    causal = not config.is_encoder_decoder and config.model_type not in ("bert", "roberta", "modernbert")
    if causal:
        mask[1, :3] = 0
        if config.model_type != "bloom":
            result["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    else:
        mask[1, -3:] = 0
    ids[mask == 0] = pad if pad is not None else 0
    if config.is_encoder_decoder:
        result["decoder_input_ids"] = torch.tensor([[rng.choice(usable) for _ in range(7)] for _ in range(2)])
        result["decoder_input_ids"][:, 0] = config.decoder_start_token_id
    return result


def expected(model, rng):
    config = model.config
    given = inputs_of(config, rng)
    result = dict(given)
    with torch.no_grad():
        out = model(**given, output_hidden_states=True, output_attentions=True, return_dict=True, use_cache=False)
    result["logits"] = out.logits
    parts = {"hidden": "hidden_states", "attention": "attentions"}
    if config.is_encoder_decoder:
        parts = {"hidden": "decoder_hidden_states", "encoder_attention": "encoder_attentions",
                 "decoder_attention": "decoder_attentions", "cross_attention": "cross_attentions"}
        result["encoder_last_hidden_state"] = out.encoder_last_hidden_state
    for name, key in parts.items():
        for i, tensor in enumerate(out[key]):
            result[f"{name}.{i}"] = tensor
    row = {key: value[:1] for key, value in given.items() if key in ("input_ids", "attention_mask")}
    steps = 30 if config.model_type == "llama" and "dynamic" in str(config.rope_parameters) else NEW_TOKENS
    generates = config.model_type not in ("bert", "roberta", "modernbert")
    if generates:
        plan = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False}
        result["greedy"] = model.generate(**row, **plan)
    if config.is_encoder_decoder:
        result["beam4"] = model.generate(**row, **plan, num_beams=4, length_penalty=1.0, early_stopping=True)
        result["beam3"] = model.generate(**row, **plan, num_beams=3, length_penalty=1.0, early_stopping=True)
    labels = given["decoder_input_ids"] if config.is_encoder_decoder else given["input_ids"]
    loss = model(**row, labels=labels[:1]).loss
    loss.backward()
    result["loss"] = loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            result["grad." + name] = parameter.grad
    return {key: value.detach().contiguous().clone() for key, value in result.items()}


def file_names(folder):
    """Gradients go by the names of the file, where those differ from the names of the modules."""
    from safetensors import safe_open
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    global LARGE
    LARGE = arguments.large
    torch.set_num_threads(1)
    for index, (name, configure) in enumerate(MODELS.items()):
        if arguments.only and name not in arguments.only:
            continue
        rng = random.Random(1000 * arguments.seed + index)
        model = build(name, configure(rng), 1000 * arguments.seed + index)
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        tensors = expected(model, rng)
        known = file_names(folder)
        tensors = {key: value for key, value in tensors.items()
                   if not key.startswith("grad.") or key[5:] in known}
        made = f"transformers {transformers.__version__}, torch {torch.__version__}"
        save_file(tensors, folder / "expected.safetensors", metadata={"made_with": made})
        print(name, {key: json.loads((folder / "config.json").read_text()).get(key) for key in ("model_type",)})


if __name__ == "__main__":
    main()
