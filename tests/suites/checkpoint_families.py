"""Configurations of the families that heed loads, drawn over the fields of transformers' configuration classes.

A function for each family: random numbers in, the arguments of its configuration class out. See checkpoints.py.
"""
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python", "gelu_python_tanh",
               "relu", "silu", "swish", "quick_gelu", "tanh", "sigmoid", "linear")
RARE_ACTIVATIONS = ("relu2", "relu6", "hardswish", "leaky_relu", "mish", "gelu_10", "laplace")
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
