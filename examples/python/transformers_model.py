"""A Hugging Face model on heed: one line registers it, one word chooses it, and the logits are the same.

Small models with random weights, so that nothing is downloaded. Needs torch and transformers.
"""

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, GptOssConfig, LlamaConfig

import heed.torch

heed.torch.register_transformers()

SIZES = dict(vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
MODELS = {
    "GPT-2": GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=None),
    "Llama, grouped heads": LlamaConfig(**SIZES, num_key_value_heads=2),
    "Gemma 2, soft-cap and sliding window": Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=16, sliding_window=8),
    "gpt-oss, sinks": GptOssConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        num_local_experts=2,
        num_experts_per_tok=2,
        pad_token_id=0,
        eos_token_id=None,
    ),
}


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 100, (2, 24))
    padding = torch.ones_like(tokens)
    padding[1, :5] = 0  # the second text is shorter
    for name, config in MODELS.items():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            expected = model(tokens, attention_mask=padding).logits
            model.set_attn_implementation("heed")
            logits = model(tokens, attention_mask=padding).logits
            written = model.generate(tokens[:1], max_new_tokens=8, do_sample=False, pad_token_id=0)
        # Padding sees nothing: what a model says there means nothing.
        difference = (logits - expected)[padding.bool()].abs().max().item()
        print(f"{name}: largest difference of a logit {difference:.1e}; wrote {written[0, 24:].tolist()}")
        assert difference < 1e-5, difference


if __name__ == "__main__":
    main()
