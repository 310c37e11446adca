"""Hugging Face models on heed: logits and gradients as with their own attention. Skipped where not installed."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heed.torch  # noqa: E402

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=50,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=None,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    ),
    "mistral, sliding window": lambda: transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=5),
    "gemma 2, soft-cap": lambda: transformers.Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=5
    ),
    "gpt-oss, sinks": lambda: transformers.GptOssConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=5,
        num_local_experts=2,
        num_experts_per_tok=2,
        pad_token_id=0,
        eos_token_id=None,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients(name):
    torch.manual_seed(0)
    heed.torch.register_transformers()
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager")
    tokens, padding = torch.randint(0, 50, (2, 13)), torch.ones(2, 13, dtype=torch.int64)
    padding[1, :4] = 0
    results = []
    for implementation in ("eager", "heed"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        logits = model(tokens, attention_mask=padding).logits[padding.bool()]
        logits.logsumexp(-1).sum().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) > 5
    for a, b in zip(*results):
        assert torch.allclose(a, b, atol=2e-5, rtol=1e-4), (a - b).abs().max()


def test_generation_with_a_cache():
    torch.manual_seed(0)
    heed.torch.register_transformers()
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](), attn_implementation="eager").eval()
    prompt = torch.randint(0, 50, (2, 5))
    expected = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    model.set_attn_implementation("heed")
    assert torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0), expected)


def test_encoder():
    torch.manual_seed(0)
    heed.torch.register_transformers()
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    tokens, padding = torch.randint(0, 50, (2, 9)), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    with torch.no_grad():
        expected = model(tokens, attention_mask=padding).last_hidden_state
        model.set_attn_implementation("heed")
        got = model(tokens, attention_mask=padding).last_hidden_state
    assert torch.allclose(got[padding.bool()], expected[padding.bool()], atol=1e-5)


def test_encoder_and_decoder_with_a_position_bias():
    torch.manual_seed(0)
    heed.torch.register_transformers()
    sizes = dict(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration._from_config(
        transformers.T5Config(**sizes), attn_implementation="eager"
    ).eval()
    source, padding = torch.randint(3, 50, (2, 9)), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    target = torch.randint(3, 50, (2, 5))
    with torch.no_grad():
        expected = model(source, attention_mask=padding, decoder_input_ids=target).logits
        model.set_attn_implementation("heed")
        got = model(source, attention_mask=padding, decoder_input_ids=target).logits
    assert torch.allclose(got, expected, atol=1e-5)


FEW = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=64,
)  # fmt: skip


def small_models():
    yield transformers.LlamaConfig(**FEW)
    yield transformers.MistralConfig(**FEW, sliding_window=6)
    yield transformers.Gemma2Config(**FEW, head_dim=8, sliding_window=5)
    yield transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)


@pytest.mark.parametrize("config", list(small_models()), ids=lambda config: config.model_type)
def test_windows_padding_caches_and_weights(config):
    heed.torch.register_transformers()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(1, 50, (2, 20))
    left, right = torch.ones(2, 20, dtype=int), torch.ones(2, 20, dtype=int)
    left[1, :5], right[1, 15:] = 0, 0
    found = {}
    for name in ("eager", "heed"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            whole = model(tokens, output_attentions=True)
            found[name] = [
                whole.logits,
                model(tokens, attention_mask=left).logits[left.bool()],
                model(tokens, attention_mask=right).logits[right.bool()],
                *whole.attentions,
            ]
            for cache in (None, "static"):
                found[name].append(
                    model.generate(
                        tokens, attention_mask=left, max_new_tokens=8, do_sample=False, pad_token_id=0,
                        cache_implementation=cache,
                    ).float()
                )  # fmt: skip
    assert len(found["heed"]) == len(found["eager"]) == 7
    for ours, theirs in zip(found["heed"], found["eager"]):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_masks_say_what_they_mean():
    from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

    from heed._transformers import Mask, transformers_mask

    assert transformers_mask(2, 5, 5) is None
    window = sliding_window_causal_mask_function(3)
    padded = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    for given in (
        dict(q_length=5, kv_length=5, mask_function=window, local_size=3),
        dict(q_length=2, kv_length=5, q_offset=3, mask_function=window, local_size=3),
        dict(q_length=2, kv_length=8, q_offset=3, mask_function=window, local_size=3),
        dict(q_length=5, kv_length=5, attention_mask=padded),
        dict(q_length=5, kv_length=5, attention_mask=padded.flip(1)),
        dict(q_length=3, kv_length=9, q_offset=4, mask_function=causal_mask_function),
    ):
        mask = transformers_mask(2, **given)
        assert isinstance(mask, Mask) and mask.options
        expected = sdpa_mask(2, **given, allow_is_causal_skip=False)
        assert torch.equal(mask & True, expected)  # whoever computes with it gets the numbers
        assert torch.equal(mask[..., :2], expected[..., :2])
        q, k = torch.randn(2, 1, expected.shape[2], 4), torch.randn(2, 1, expected.shape[3], 4)
        weights = heed.attention_weights(q, k, **mask.options)
        assert torch.equal(weights > 0, expected)


def seen_by_kernels(monkeypatch, call):
    """The options of all calls of heed.torch.attend that `call` makes."""
    import heed._transformers as bridge

    seen, attend = [], bridge.attend

    def watched(q, k, v, **options):
        seen.append({"tokens": (q.shape[2], k.shape[2]), **options})
        return attend(q, k, v, **options)

    with monkeypatch.context() as patch:
        patch.setattr(bridge, "attend", watched)
        with torch.no_grad():
            call()
    return seen


def test_kernels_get_windows_lengths_and_documents_instead_of_masks(monkeypatch):
    heed.torch.register_transformers()
    torch.manual_seed(0)
    config = transformers.MistralConfig(**FEW, sliding_window=6)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="heed").eval()
    tokens, left, right = torch.randint(1, 50, (2, 20)), torch.ones(2, 20, dtype=int), torch.ones(2, 20, dtype=int)
    left[1, :5], right[1, 15:] = 0, 0
    packed = dict(position_ids=torch.cat([torch.arange(n) for n in (7, 1, 12)])[None], use_cache=False)
    calls = {
        "whole": lambda: model(tokens),
        "padding in front": lambda: model(tokens, attention_mask=left),
        "padding behind": lambda: model(tokens, attention_mask=right),
        "packed": lambda: model(tokens[:1], **packed),
        **{
            f"{cache} cache": lambda cache=cache: model.generate(
                tokens, attention_mask=left, max_new_tokens=8, do_sample=False, pad_token_id=0,
                cache_implementation=cache,
            )
            for cache in ("dynamic", "static")
        },
    }  # fmt: skip
    for name, call in calls.items():
        seen = seen_by_kernels(monkeypatch, call)
        assert len(seen) >= 2, name
        for options in seen:
            allow = options.get("allow")
            assert allow is None or allow.shape[-2] == 1, (name, "a mask of T x S", allow.shape)
            assert options.get("bias") is None, name
            if options["tokens"][0] > 1:
                assert options["causal"] and options["window"] == (5, -1), (name, options)
        assert ("allow" in seen[0]) == (name in ("padding in front", "dynamic cache", "static cache")), name
        assert ("key_lengths" in seen[0]) == (name == "padding behind"), name
        assert ("cu_seqlens" in seen[0]) == (name == "packed"), name


@pytest.mark.parametrize("config", list(small_models()), ids=lambda config: config.model_type)
def test_sequences_packed_by_their_positions(config):
    """Each as if it were alone, gradients and weights too; those of a batch by a mask."""
    heed.torch.register_transformers()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(1, 50, (2, 20))
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in ((7, 1, 12), (16, 4))])
    found = {}
    for name in ("eager", "heed"):
        model.set_attn_implementation(name)
        found[name] = []
        for batch in (1, 2):
            model.zero_grad()
            given = dict(position_ids=positions[:batch], use_cache=False)
            whole = model(tokens[:batch], **given)
            whole.logits.logsumexp(-1).sum().backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found[name] += [whole.logits.detach(), *gradients]
            found[name] += [x.detach() for x in model(tokens[:batch], output_attentions=True, **given).attentions]
    assert len(found["heed"]) == len(found["eager"]) > 10
    for ours, theirs in zip(found["heed"], found["eager"]):
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-4)
    alone = model(tokens[:1, 8:], use_cache=False).logits
    assert torch.allclose(alone, found["heed"][0][:, 8:], atol=1e-5)


def test_continuous_batching_under_the_name_of_sdpa(monkeypatch):
    """transformers' own scheduler and paged cache, which take no other name."""
    from transformers.masking_utils import AttentionMaskInterface

    torch.manual_seed(0)
    config = transformers.MistralConfig(**FEW, sliding_window=6, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    prompts = [[3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14], [15]]
    how = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)

    def generate():
        made = model.generate_batch(inputs=prompts, generation_config=how, progress_bar=False)
        return sorted((tuple(x.prompt_ids), tuple(x.generated_tokens)) for x in made.values())

    expected = generate()
    assert len(expected) == 3 and all(len(tokens) == 6 for _, tokens in expected)
    heed.torch.register_transformers()
    for interface in (transformers.AttentionInterface, AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))
    names = transformers.PreTrainedModel.get_correct_attn_implementation.heed_names
    heed.torch.register_transformers("sdpa")
    try:
        found = []
        seen = seen_by_kernels(monkeypatch, lambda: found.extend(generate()))
    finally:
        names.discard("sdpa")
    assert found == expected and len(seen) >= 12


def test_windows_of_both_sides_reach_the_kernels(monkeypatch):
    heed.torch.register_transformers()
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        global_attn_every_n_layers=2, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=1, cls_token_id=1,
        sep_token_id=1,
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    tokens, padding = torch.randint(1, 50, (2, 20)), torch.ones(2, 20, dtype=int)
    padding[1, 15:] = 0
    with torch.no_grad():
        expected = model(tokens, attention_mask=padding).last_hidden_state
        model.set_attn_implementation("heed")
        got = model(tokens, attention_mask=padding).last_hidden_state
    assert torch.allclose(got[padding.bool()], expected[padding.bool()], atol=1e-5)
    seen = seen_by_kernels(monkeypatch, lambda: model(tokens, attention_mask=padding))
    windows = {options.get("window") for options in seen}
    assert None in windows and len(windows) == 2 and all(options.get("allow") is None for options in seen)
    ((left, right),) = windows - {None}
    assert left == right > 0


def test_autocast():
    heed.torch.register_transformers()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](), attn_implementation="sdpa").eval()
    tokens = torch.randint(0, 50, (2, 13))
    found = []
    for name in ("sdpa", "heed"):
        model.set_attn_implementation(name)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens, use_cache=False).logits  # rotated queries of float32 beside values of bfloat16
        logits.float().logsumexp(-1).sum().backward()
        found.append([logits.detach().float(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert found[0][0].dtype == found[1][0].dtype and len(found[0]) == len(found[1])
    for ours, theirs in zip(*found):
        assert (ours - theirs).norm() <= 0.02 * theirs.norm() + 1e-6


def models_with_attention_of_their_own():
    t = transformers
    few = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48)
    bart = dict(vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                decoder_attention_heads=4)  # fmt: skip
    return {
        "Bloom": lambda: t.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4),
        "Mpt": lambda: t.MptConfig(vocab_size=50, d_model=32, n_layers=1, n_heads=4),
        "CodeGen": lambda: t.CodeGenConfig(vocab_size=50, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),
        "XGLM": lambda: t.XGLMConfig(vocab_size=50, d_model=32, num_layers=1, attention_heads=4, ffn_dim=32),
        "MPNet": lambda: t.MPNetConfig(**few),
        "RoFormer": lambda: t.RoFormerConfig(**few),
        "RemBert": lambda: t.RemBertConfig(**few),
        "MegatronBert": lambda: t.MegatronBertConfig(**few),
        "Longformer": lambda: t.LongformerConfig(**few, attention_window=4),
        "LED": lambda: t.LEDConfig(**bart, attention_window=4),
        "BigBird": lambda: t.BigBirdConfig(**few),
        "BigBirdPegasus": lambda: t.BigBirdPegasusConfig(**bart),
        "PegasusX": lambda: t.PegasusXConfig(**bart),
        "NllbMoe": lambda: t.NllbMoeConfig(**bart),
        "ConvBert": lambda: t.ConvBertConfig(**few),
        "Mvp": lambda: t.MvpConfig(**bart),
        "IBert": lambda: t.IBertConfig(**few),
        "Nystromformer": lambda: t.NystromformerConfig(**few),
        "SqueezeBert": lambda: t.SqueezeBertConfig(**few, embedding_size=32),
        "Tapas": lambda: t.TapasConfig(**few),
        "GPTNeoXJapanese": lambda: t.GPTNeoXJapaneseConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1,
                                                           num_attention_heads=4),
        "Falcon": lambda: t.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        "GPTJ": lambda: t.GPTJConfig(vocab_size=50, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),
        "GPTNeo": lambda: t.GPTNeoConfig(vocab_size=50, hidden_size=32, num_layers=2, num_heads=4,
                                         attention_types=[[["global", "local"], 1]]),
        "Sam": lambda: t.SamConfig(),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(models_with_attention_of_their_own()))
def test_models_with_attention_of_their_own_are_refused(name):
    heed.torch.register_transformers()
    config = models_with_attention_of_their_own()[name]()
    with pytest.raises(heed.Error, match=f"exchangeable, got {name}"):
        transformers.AutoModel.from_config(config, attn_implementation="heed")


def test_a_part_without_attention_is_not_refused():
    """The convolution in front of a detector."""
    heed.torch.register_transformers()
    torch.manual_seed(0)
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone=None, backbone_config=backbone, d_model=32, num_queries=6, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
    )  # fmt: skip
    eager, ours = (
        transformers.AutoModel.from_config(config, attn_implementation=name).eval() for name in ("eager", "heed")
    )
    ours.load_state_dict(eager.state_dict())
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = eager(image).last_hidden_state
        assert torch.allclose(ours(image).last_hidden_state, expected, atol=1e-5)
    with pytest.raises(heed.Error, match="got Mra"):
        transformers.MraModel._from_config(transformers.MraConfig(), attn_implementation="heed")


def test_models_of_models_are_as_good_as_their_parts():
    heed.torch.register_transformers()
    t = transformers
    few = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48)
    torch.manual_seed(0)
    config = t.EncoderDecoderConfig.from_encoder_decoder_configs(t.BertConfig(**few), t.BertConfig(**few))
    eager, ours = (t.EncoderDecoderModel._from_config(config, attn_implementation=x).eval() for x in ("eager", "heed"))
    ours.load_state_dict(eager.state_dict())
    assert ours.encoder.config._attn_implementation == ours.decoder.config._attn_implementation == "heed"
    tokens, there = torch.randint(1, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    there[1, 4:] = 0
    with torch.no_grad():
        logits = [m(tokens, attention_mask=there, decoder_input_ids=tokens[:, :3]).logits for m in (eager, ours)]
    assert torch.allclose(*logits, atol=1e-5)
    bloom = t.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)
    config = t.EncoderDecoderConfig.from_encoder_decoder_configs(t.BertConfig(**few), bloom)
    with pytest.raises(heed.Error, match="exchangeable, got Bloom"):
        t.EncoderDecoderModel._from_config(config, attn_implementation="heed")


def test_trocr_is_refused():
    heed.torch.register_transformers()
    config = transformers.TrOCRConfig(vocab_size=50, d_model=32, decoder_layers=1, decoder_attention_heads=4)
    with pytest.raises(heed.Error, match="exchangeable, got TrOCR"):
        transformers.TrOCRForCausalLM._from_config(config, attn_implementation="heed")


def test_deepseek_v4_gets_the_mask_that_it_appends_to():
    heed.torch.register_transformers()
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(
        vocab_size=50, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4,
        head_dim=16, q_lora_rank=16, n_routed_experts=4, num_experts_per_tok=2, sliding_window=4, o_groups=2,
        o_lora_rank=8, index_n_heads=2, index_head_dim=16, index_topk=2, max_position_embeddings=64, hc_mult=2,
        compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(2, 50, (2, 13))
    with torch.no_grad():
        expected = model(tokens).logits
        model.set_attn_implementation("heed")
        assert torch.allclose(model(tokens).logits, expected, atol=1e-5)
