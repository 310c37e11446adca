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
            "genai": ["onnxruntime_genai", "onnx", "onnx_ir", "transformers"], "llama.cpp": ["llama_cpp", "gguf"],
            "llama.cpp-k": ["llama_cpp", "gguf"]}
TYPES = {"transformers": ["f32", "bf16"], "ctranslate2": ["f32", "int8"], "genai": ["f32", "int8", "int4"],
         "llama.cpp": ["f32", "bf16", "int8", "int4"], "llama.cpp-k": ["int4"]}


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


def c_path(path):
    return str(path).encode()


class LlamaCpp:
    """llama.cpp by its C functions: F32, BF16, Q8_0 and Q4_0."""

    def __init__(self, folder, kind, threads):
        import llama_cpp
        self.llama = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(c_path(self.file(pathlib.Path(folder), kind)), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = 1024
        parameters.n_batch = parameters.n_ubatch = PROMPT
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        if not self.context:
            raise RuntimeError("llama.cpp: no context")

    def file(self, folder, kind):
        path = folder / f"{kind}.gguf"
        if not path.exists():
            write_gguf(folder, path, kind)
        return path

    def step(self, tokens):
        ids = (self.llama.llama_token * len(tokens))(*tokens)
        if self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(ids, len(tokens))) != 0:
            raise RuntimeError("llama.cpp: a step failed")
        import numpy
        return int(numpy.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, -1), (self.vocabulary,)).argmax())

    def start(self, count):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        return self.step(prompt(count))

    def prefill(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        begin = time.perf_counter()
        self.step(prompt(PROMPT))
        return time.perf_counter() - begin

    def decode(self, steps):
        token = self.start(16)
        for _ in range(2):
            token = self.step([token])
        begin = time.perf_counter()
        for _ in range(steps):
            token = self.step([token])
        return time.perf_counter() - begin


class LlamaCppK(LlamaCpp):
    """Q4_K_M, which llama.cpp makes itself."""

    def file(self, folder, kind):
        path = folder / "int4-k.gguf"
        if not path.exists():
            plain = super().file(folder, "bf16")
            how = self.llama.llama_model_quantize_default_params()
            how.ftype = self.llama.LLAMA_FTYPE_MOSTLY_Q4_K_M
            if self.llama.llama_model_quantize(c_path(plain), c_path(path), how) != 0:
                raise RuntimeError("llama.cpp: quantising failed")
        return path


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


CONTESTANTS = {"transformers": Transformers, "ctranslate2": CTranslate2, "genai": Genai, "llama.cpp": LlamaCpp, "llama.cpp-k": LlamaCppK}


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
