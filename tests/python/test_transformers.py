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
