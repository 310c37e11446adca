"""Other software's part of bench/generation: `has NAME TYPE`, or `run NAME TYPE MODEL THREADS`, which loads the model and measures
once for every line on standard input. What other software reads instead of the folder is written beside it, once."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

PROMPT = 512
PACKAGES = {"transformers": ["torch", "transformers"], "ctranslate2": ["ctranslate2", "transformers"],
            "genai": ["onnxruntime_genai", "onnx", "transformers"], "llama.cpp": ["xllamacpp", "gguf"]}
TYPES = {"transformers": ["f32", "bf16"], "ctranslate2": ["f32", "int8"], "genai": ["f32", "int8", "int4"],
         "llama.cpp": ["f32", "bf16", "int8", "int4"]}


def prompt(count):
    return [3 + (n * 7919) % 31000 for n in range(count)]


class Transformers:
    def __init__(self, folder, kind, threads):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[kind]).eval()

    def prefill(self):
        with self.torch.no_grad():
            self.model(self.torch.tensor([prompt(PROMPT)]), use_cache=True, logits_to_keep=1)

    def decode(self, steps):
        torch = self.torch
        with torch.no_grad():
            out = self.model(torch.tensor([prompt(16)]), use_cache=True, logits_to_keep=1)
            begin = time.perf_counter()
            for _ in range(steps):
                out = self.model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
            return time.perf_counter() - begin


class CTranslate2:
    def __init__(self, folder, kind, threads):
        import ctranslate2
        where = pathlib.Path(folder) / "ctranslate2"
        if not where.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(where))
        self.generator = ctranslate2.Generator(str(where), compute_type={"f32": "float32", "int8": "int8"}[kind], inter_threads=1, intra_threads=threads)

    def words(self, count):
        return [f"t{n}" for n in prompt(count)]

    def prefill(self):
        self.generator.generate_batch([self.words(PROMPT)], max_length=1, include_prompt_in_result=False)

    def decode(self, steps):
        times = []
        for count in (1, steps + 1):
            begin = time.perf_counter()
            self.generator.generate_batch([self.words(16)], max_length=count, min_length=count, include_prompt_in_result=False)
            times.append(time.perf_counter() - begin)
        return times[1] - times[0]


class Genai:
    def __init__(self, folder, kind, threads):
        import onnxruntime_genai
        self.genai = onnxruntime_genai
        where = pathlib.Path(folder) / ("genai-" + kind)
        if not where.exists():
            precision = {"f32": "fp32", "int8": "int8", "int4": "int4"}[kind]
            subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", str(folder), "-o", str(where), "-p", precision, "-e", "cpu"],
                           check=True, stdout=sys.stderr)
        config = json.loads((where / "genai_config.json").read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
        (where / "genai_config.json").write_text(json.dumps(config))
        self.model = onnxruntime_genai.Model(str(where))

    def start(self, count, longest):
        parameters = self.genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=longest, min_length=longest, do_sample=False)
        generator = self.genai.Generator(self.model, parameters)
        generator.append_tokens(prompt(count))
        return generator

    def prefill(self):
        self.start(PROMPT, PROMPT + 2).generate_next_token()

    def decode(self, steps):
        generator = self.start(16, 20 + steps)
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(steps):
            generator.generate_next_token()
        return time.perf_counter() - begin


def write_gguf(folder, path, kind):
    """A Llama folder as GGUF: norms in f32, all else in the type asked for."""
    import gguf
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    quantised = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0,
                 "int4": gguf.GGMLQuantizationType.Q4_0}[kind]
    writer = gguf.GGUFWriter(str(path), "llama")
    heads, head = config["num_attention_heads"], config["head_dim"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"t%d" % n for n in range(3, config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    writer.add_token_types([2, 3, 3] + [1] * (config["vocab_size"] - 3))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, numbers in read_safetensors(pathlib.Path(folder) / "model.safetensors"):
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # rotated pairs lie next to each other
            count = numbers.shape[0] // head
            numbers = numbers.reshape(count, 2, head // 2, -1).swapaxes(1, 2).reshape(numbers.shape)
        how = gguf.GGMLQuantizationType.F32 if numbers.ndim == 1 else quantised
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), gguf.quants.quantize(numbers, how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    def __init__(self, folder, kind, threads):
        import xllamacpp
        path = pathlib.Path(folder) / f"{kind}.gguf"
        if not path.exists():
            write_gguf(folder, path, kind)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = 1024
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        parameters.warmup = True
        self.server = xllamacpp.Server(parameters)
        self.round = 0

    def complete(self, tokens, count):
        return self.server.handle_completions({"prompt": tokens, "n_predict": count, "cache_prompt": False, "ignore_eos": True, "temperature": 0.0})

    def prefill(self):
        timings = self.complete(prompt(PROMPT), 1)["timings"]
        return timings["prompt_ms"] / 1e3 * PROMPT / timings["prompt_n"]

    def decode(self, steps):
        timings = self.complete(prompt(16), steps + 1)["timings"]
        return timings["predicted_ms"] / 1e3 * steps / timings["predicted_n"]


def read_safetensors(path):
    import numpy
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        words = numpy.frombuffer(data[8 + size + begin:8 + size + end], dtype=numpy.uint16)
        yield name, (words.astype(numpy.uint32) << 16).view(numpy.float32).reshape(entry["shape"])


CONTESTANTS = {"transformers": Transformers, "ctranslate2": CTranslate2, "genai": Genai, "llama.cpp": LlamaCpp}


def main():
    command, name, kind = sys.argv[1:4]
    if command == "has":
        sys.exit(any(importlib.util.find_spec(package) is None for package in PACKAGES[name]) or kind not in TYPES[name])
    folder, threads = sys.argv[4], int(sys.argv[5])
    contestant = CONTESTANTS[name](folder, kind, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        prefill = contestant.prefill()
        prefill = prefill or time.perf_counter() - begin
        decode = contestant.decode(steps)
        print(json.dumps({"decode": steps / decode, "prefill": PROMPT / prefill}), flush=True)


if __name__ == "__main__":
    main()
