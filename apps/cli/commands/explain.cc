#include "commands/commands.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <heed/attention.h>
#include <nlohmann/json.hpp>

#include "commands/explain_operations.h"
#include "commands/options.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ExplainArguments {
    std::string operation = "attend";
    std::string shape;
    std::string dtype = "f32";
    std::string bias;
    std::string kernel;
    bool mask = false, lengths = false, sinks = false, packed = false, json = false;
    Settings settings;
};

AttentionShape shape_of(const ExplainArguments& arguments) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    const std::vector<std::int64_t> n = parse_integers("--shape", arguments.shape, 0, most);
    if (n.size() != 6 && n.size() != 7) {
        throw UsageError("--shape: expected B,H,G,T,S,D or B,H,G,T,S,D,E, got '" + arguments.shape + "'");
    }
    return {.batch = n[0],
            .heads = n[1],
            .kv_heads = n[2],
            .queries = n[3],
            .keys = n[4],
            .head_size = n[5],
            .value_size = n.size() == 7 ? n[6] : n[5],
            .dtype = parse_dtype("--dtype", arguments.dtype)};
}

/// Options with tensors of the right shape that take no memory: every stride is 0, one element stands for all.
struct Options {
    AttentionOptions value;
    Tensor slopes;
    double zero = 0;
    std::uint8_t one = 1;
    std::int64_t length[2] = {0, 0};
    std::int64_t queries[2] = {0, 0}, keys[2] = {0, 0};

    Options(const ExplainArguments& arguments, const AttentionShape& s) {
        arguments.settings.apply(value);
        value.kernel = arguments.kernel;
        const auto repeated = [](DType dtype, const void* data, const Shape& shape) {
            Shape strides = shape;
            for (int axis = 0; axis < strides.rank(); ++axis) { strides[axis] = 0; }
            return View(dtype, data, shape, strides);
        };
        if (!arguments.bias.empty()) {
            const std::string& kind = arguments.bias;
            const bool full = kind == "full", head = kind == "head", key = kind == "key";
            if (!full && !head && !key && kind != "one") {
                throw UsageError("--bias: expected full, head, one or key, got '" + kind + "'");
            }
            value.bias = repeated(DType::f64, &zero,
                                  {full || key ? s.batch : 1, full || head ? s.heads : 1, key ? 1 : s.queries, s.keys});
        }
        if (arguments.mask) { value.allow = repeated(DType::u8, &one, {s.batch, 1, s.queries, s.keys}); }
        if (arguments.sinks) { value.sinks = repeated(DType::f64, &zero, {s.heads}); }
        if (arguments.lengths) {
            length[0] = s.keys;
            value.key_lengths = repeated(DType::i64, length, {s.batch});
        }
        if (arguments.settings.alibi.value_or(false)) {
            slopes = default_slopes(s.heads);
            value.alibi_slopes = slopes;
        }
        if (arguments.packed) {
            queries[1] = s.queries;
            keys[1] = s.keys;
            value.cu_seqlens_q = View(queries, {2});
            value.cu_seqlens_k = View(keys, {2});
        }
    }
};

nlohmann::ordered_json verdicts_of(const Explanation& explanation) {
    auto verdicts = nlohmann::ordered_json::array();
    for (const KernelVerdict& v : explanation.verdicts) {
        verdicts.push_back({{"kernel", v.kernel}, {"fits", v.fits}, {"reason", v.reason}});
    }
    return verdicts;
}

void print_json(const AttentionShape& s, const Explanation& explanation, const AttentionOptions& options) {
    nlohmann::ordered_json json;
    json["shape"] = {{"B", s.batch}, {"H", s.heads},     {"G", s.kv_heads},   {"T", s.queries},
                     {"S", s.keys},  {"D", s.head_size}, {"E", s.value_size}, {"dtype", name_of(s.dtype)}};
    json["options"] = to_spec(options);
    json["kernel"] = explanation.kernel;
    json["verdicts"] = verdicts_of(explanation);
    fmt::print("{}\n", json.dump(2));
}

void print_verdicts(const Explanation& explanation) {
    std::size_t width = 6;
    for (const KernelVerdict& v : explanation.verdicts) { width = std::max(width, v.kernel.size()); }
    fmt::print("   {:<{}}  fits  why\n", "kernel", width);
    for (const KernelVerdict& v : explanation.verdicts) {
        fmt::print("{} {:<{}}  {:<4}  {}\n", v.kernel == explanation.kernel ? "->" : "  ", v.kernel, width,
                   v.fits ? "yes" : "no", printable(v.reason));
    }
}

void print_text(const AttentionShape& s, const Explanation& explanation, const AttentionOptions& options) {
    fmt::print("q [{},{},{},{}]  k [{},{},{},{}]  v [{},{},{},{}]  {}\n", s.batch, s.heads, s.queries, s.head_size,
               s.batch, s.kv_heads, s.keys, s.head_size, s.batch, s.kv_heads, s.keys, s.value_size, name_of(s.dtype));
    fmt::print("options: {}\n\n", to_words(options));
    print_verdicts(explanation);
}

/// Any operation: the verdicts of each of those that it is made of.
void explain_other(const ExplainArguments& arguments) {
    const std::vector<Explanation> all =
        explain_operation({arguments.operation, arguments.shape, arguments.dtype, arguments.kernel});
    if (arguments.json) {
        auto json = nlohmann::ordered_json::array();
        for (const Explanation& e : all) {
            json.push_back({{"operation", e.operation}, {"kernel", e.kernel}, {"verdicts", verdicts_of(e)}});
        }
        fmt::print("{}\n", json.dump(2));
        return;
    }
    for (const Explanation& e : all) {
        fmt::print("{}  {}  {}\n\n", e.operation, printable(arguments.shape), arguments.dtype);
        print_verdicts(e);
    }
}

void explain_command(const ExplainArguments& arguments) {
    if (arguments.operation != "attend") { return explain_other(arguments); }
    const AttentionShape shape = shape_of(arguments);
    const Options options(arguments, shape);
    const Explanation explanation = explain(shape, options.value);
    (arguments.json ? print_json : print_text)(shape, explanation, options.value);
}

}  // namespace
}  // namespace heed::cli

void add_explain(CLI::App& app) {
    CLI::App* command = app.add_subcommand("explain", "Which kernel would run, and why not the others");
    const auto arguments = std::make_shared<heed::cli::ExplainArguments>();
    command
        ->add_option("operation", arguments->operation,
                     "attend (default), or another operation: see below. The options are attend's")
        ->type_name("OPERATION");
    command
        ->add_option("--shape", arguments->shape,
                     "B,H,G,T,S,D[,E]: batch, query heads, key/value heads, queries, keys, head and value size")
        ->type_name("SIZES")
        ->required();
    command->add_option("--dtype", arguments->dtype, "f32 (default), bf16, f16 or f64")->type_name("TYPE");
    command->add_flag("--json", arguments->json, "Print JSON");
    heed::cli::add_kernel(*command, arguments->kernel);
    heed::cli::add_settings(*command, arguments->settings);
    command
        ->add_option("--bias", arguments->bias, "A bias: full [B,H,T,S], head [1,H,T,S], one [1,1,T,S], key [B,1,1,S]")
        ->type_name("KIND")
        ->group("Attention");
    command->add_flag("--mask", arguments->mask, "A mask [B,1,T,S]")->group("Attention");
    command->add_flag("--lengths", arguments->lengths, "A key length for each batch entry")->group("Attention");
    command->add_flag("--sinks", arguments->sinks, "A sink for each head")->group("Attention");
    command->add_flag("--packed", arguments->packed, "Packed sequences (B must be 1)")->group("Attention");
    command->footer(
        "Examples:\n"
        "  heed explain --shape 1,32,8,4096,4096,128 --dtype bf16 --causal\n"
        "  heed explain --shape 2,8,8,512,512,64 --window 255,0 --dropout 0.1 --json\n"
        "  heed explain matmul --shape 512,512,1024\n"
        "Operations: " +
        heed::cli::operation_names() +
        ".\nEach says which sizes it takes.\n"
        "The environment variable HEED_KERNEL does what --kernel does.");
    command->callback([arguments] { heed::cli::explain_command(*arguments); });
}
