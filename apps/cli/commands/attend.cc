#include "commands/commands.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <heed/inspect.h>
#include <heed/safetensors.h>
#include <CLI/CLI.hpp>

#include "commands/options.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct AttendArguments {
    std::string in;
    std::string out;
    std::string dtype;
    std::string kernel;
    std::string threads = "0";
    bool weights = false;
    Settings settings;
};

constexpr std::array input_names = {"q",
                                    "k",
                                    "v",
                                    "bias",
                                    "mask",
                                    "sinks",
                                    "key_lengths",
                                    "query_lengths",
                                    "alibi_slopes",
                                    "cu_seqlens_q",
                                    "cu_seqlens_k",
                                    "dropout_keep",
                                    "dout",
                                    "dlse",
                                    "query_positions",
                                    "key_positions"};
/// Results, as golden files carry them beside the inputs: not read.
constexpr std::array result_names = {"out", "lse", "weights", "dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"};

Settings read_spec(const SafetensorsFile& file, const std::string& path) {
    Settings settings;
    const auto found = file.metadata().find("spec");
    if (found == file.metadata().end()) { return settings; }
    const std::string source = path + ": spec";
    const nlohmann::ordered_json spec = parse_json(source, found->second);
    if (!spec.is_object()) { throw UsageError(source + ": expected a JSON object, got " + describe(spec)); }
    for (const auto& [key, value] : spec.items()) {
        if (!read_setting(source, key, value, settings)) {
            throw UsageError(
                fmt::format("{}: unknown key '{}'; expected scale, softcap, causal, align, window, alibi, "
                            "bias, mask, lengths, sinks, dropout, seed or offset",
                            source, key));
        }
    }
    return settings;
}

/// What the file and the flags ask for, with the memory behind the views.
struct Problem {
    Tensor q, k, v, dout, dlse;
    Tensor bias, mask, sinks, key_lengths, query_lengths, slopes, cu_q, cu_k, keep, query_positions, key_positions;
    Shape bias_shape;  ///< as in the file; the view has 4 axes
    AttentionOptions options;
    DType dtype = DType::f32;
    std::vector<std::string> unused;  ///< tensors of the file that play no part

    /// Small enough that reading the file takes longer than computing with double sums: then the answer is the
    /// reference's.
    bool is_small() const {
        const double pairs = static_cast<double>(q.shape()[0] * q.shape()[1]) * static_cast<double>(q.shape()[2]) *
                             static_cast<double>(k.shape()[2]);
        return std::getenv("HEED_KERNEL") == nullptr && pairs * static_cast<double>(q.shape()[3] + v.shape()[3]) < 3e7;
    }

    Problem(const SafetensorsFile& file, const AttendArguments& arguments) {
        Settings settings = read_spec(file, arguments.in);
        settings.override_with(arguments.settings);
        settings.apply(options);
        read_inputs(file, arguments);
        options.kernel = arguments.kernel.empty() && is_small() ? "reference" : arguments.kernel;
        if (options.kernel == "best") { options.kernel.clear(); }
        read_options(file, arguments, settings);
        for (const std::string& name : file.names()) {
            const auto is = [&](const char* known) { return name == known; };
            if (std::none_of(input_names.begin(), input_names.end(), is) &&
                std::none_of(result_names.begin(), result_names.end(), is)) {
                unused.push_back(name);
            }
        }
    }

    /// Results are written in f32, or f64 where the inputs are: rounding them again would only lose digits.
    DType result_dtype() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }

private:
    void read_inputs(const SafetensorsFile& file, const AttendArguments& arguments) {
        for (const auto& [name, target] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
            if (!file.contains(name)) {
                throw UsageError(fmt::format("{}: expected tensors q, k and v, got no {}", arguments.in, name));
            }
            *target = file.tensor(name);
            if (target->shape().rank() != 4) {
                throw UsageError(fmt::format("{}: {}: expected 4 axes [batch, heads, length, size], got {}",
                                             arguments.in, name, compact(target->shape())));
            }
            if (!is_floating(target->dtype())) {
                throw UsageError(fmt::format("{}: {}: expected f32, bf16, f16 or f64, got {}", arguments.in, name,
                                             name_of(target->dtype())));
            }
        }
        dtype = arguments.dtype.empty() ? q.dtype() : parse_dtype("--dtype", arguments.dtype);
        for (Tensor* tensor : {&q, &k, &v}) {
            if (arguments.dtype.empty() && tensor->dtype() != dtype) {
                throw UsageError(
                    fmt::format("{}: expected one type for q, k and v, got {}, {} and {}; choose one with "
                                "--dtype",
                                arguments.in, name_of(q.dtype()), name_of(k.dtype()), name_of(v.dtype())));
            }
            if (tensor->dtype() != dtype) { *tensor = tensor->to(dtype); }
        }
        if (file.contains("dout")) { dout = floats(file, "dout").to(result_dtype()); }
        if (file.contains("dlse")) { dlse = wide_floats(file, "dlse"); }
    }

    void read_options(const SafetensorsFile& file, const AttendArguments& arguments, const Settings& settings) {
        // A tensor that is there is used unless the spec says "false"; one that the spec promises must be there.
        const auto used = [&](const char* name, const std::optional<bool>& wanted) {
            const bool there = file.contains(name);
            if (wanted.value_or(false) && !there) {
                throw UsageError(
                    fmt::format("{}: the spec asks for a tensor {}, which is not there", arguments.in, name));
            }
            if (there && !wanted.value_or(true)) { unused.emplace_back(name); }
            return there && wanted.value_or(true);
        };
        if (used("bias", settings.bias)) {
            bias = floats(file, "bias");
            bias_shape = bias.shape();
            options.bias = with_4_axes("bias", bias);
        }
        if (used("mask", settings.mask)) { options.allow = with_4_axes("mask", mask = file.tensor("mask")); }
        if (used("sinks", settings.sinks)) { options.sinks = sinks = wide_floats(file, "sinks"); }
        const bool no_lengths = settings.lengths == false;
        const std::optional<bool> keys_needed = settings.lengths == true && !file.contains("query_lengths")
                                                    ? settings.lengths
                                                : no_lengths ? std::optional(false)
                                                             : std::nullopt;
        if (used("key_lengths", keys_needed)) { options.key_lengths = key_lengths = file.tensor("key_lengths"); }
        if (used("query_lengths", no_lengths ? std::optional(false) : std::nullopt)) {
            options.query_lengths = query_lengths = file.tensor("query_lengths");
        }
        const auto integers = [&](const char* name, Tensor& tensor, View& view) {
            if (file.contains(name)) { view = tensor = file.tensor(name); }
        };
        integers("cu_seqlens_q", cu_q, options.cu_seqlens_q);
        integers("cu_seqlens_k", cu_k, options.cu_seqlens_k);
        integers("query_positions", query_positions, options.query_positions);
        integers("key_positions", key_positions, options.key_positions);
        const bool slopes_there = file.contains("alibi_slopes");
        if (settings.alibi.value_or(slopes_there)) {
            options.alibi_slopes = slopes =
                slopes_there ? wide_floats(file, "alibi_slopes") : default_slopes(q.shape()[1]);
        } else if (slopes_there) {
            unused.emplace_back("alibi_slopes");
        }
        // A seed from the command line asks for the generator.
        const bool generator = arguments.settings.seed || arguments.settings.offset;
        if (file.contains("dropout_keep")) {
            if (options.dropout.p > 0 && !generator) {
                options.dropout.keep = with_4_axes("dropout_keep", keep = file.tensor("dropout_keep"));
            } else {
                unused.emplace_back("dropout_keep");
            }
        }
    }

    static Tensor floats(const SafetensorsFile& file, const char* name) {
        Tensor tensor = file.tensor(name);
        if (!is_floating(tensor.dtype())) {
            throw UsageError(fmt::format("{}: expected f32, bf16, f16 or f64, got {}", name, name_of(tensor.dtype())));
        }
        return tensor;
    }
    /// f32 or f64: the narrow types widen.
    static Tensor wide_floats(const SafetensorsFile& file, const char* name) {
        Tensor tensor = floats(file, name);
        return tensor.dtype() == DType::f64 || tensor.dtype() == DType::f32 ? std::move(tensor) : tensor.to(DType::f32);
    }
    /// Missing leading axes are 1, as everywhere where shapes are broadcast.
    static View with_4_axes(const char* name, const Tensor& tensor) {
        const Shape& shape = tensor.shape();
        if (shape.rank() > 4) {
            throw UsageError(fmt::format("{}: expected at most 4 axes, got {}", name, compact(shape)));
        }
        Shape full{1, 1, 1, 1};
        for (int axis = 0; axis < shape.rank(); ++axis) { full[4 - shape.rank() + axis] = shape[axis]; }
        return View(tensor.dtype(), tensor.data(), full);
    }
};

/// Results by name, in the order in which they are written.
struct Results {
    std::vector<std::pair<std::string, Tensor>> tensors;
    double forward_ms = 0, backward_ms = 0;
    bool has_backward = false;

    Tensor& add(const char* name, DType dtype, const Shape& shape) {
        return tensors.emplace_back(name, Tensor(dtype, shape)).second;
    }
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void backward(Context& context, const Problem& p, const Tensor& out, const Tensor& lse, Results& results) {
    const DType dtype = p.result_dtype();
    AttentionGradients gradients;
    results.tensors.reserve(results.tensors.size() + 8);  // the views point into these tensors
    gradients.dq = results.add("dq", dtype, p.q.shape());
    gradients.dk = results.add("dk", dtype, p.k.shape());
    gradients.dv = results.add("dv", dtype, p.v.shape());
    if (p.options.bias) {
        Tensor& dbias = results.add("dbias", dtype, p.bias_shape);
        gradients.dbias = MutableView(dtype, dbias.data(), p.options.bias.shape());
    }
    if (p.options.sinks) { gradients.dsinks = results.add("dsinks", dtype, p.options.sinks.shape()); }
    if (p.options.alibi_slopes) {
        gradients.dalibi_slopes = results.add("dalibi_slopes", dtype, p.options.alibi_slopes.shape());
    }
    Tensor dout(dtype, out.shape());  // zeros: dlse may come alone
    const auto start = std::chrono::steady_clock::now();
    attend_backward(context,
                    {.q = p.q,
                     .k = p.k,
                     .v = p.v,
                     .out = out,
                     .lse = lse,
                     .dout = p.dout ? p.dout.view() : std::as_const(dout).view(),
                     .dlse = p.dlse ? p.dlse.view() : View()},
                    gradients, p.options);
    results.backward_ms = milliseconds_since(start);
    results.has_backward = true;
}

Results compute(Context& context, const Problem& p, bool wants_weights, bool wants_gradients) {
    const Shape& q = p.q.shape();
    const DType dtype = p.result_dtype();
    Results results;
    results.tensors.reserve(12);
    Tensor& out = results.add("out", dtype, {q[0], q[1], q[2], p.v.shape()[3]});
    // In double for the backward pass, which subtracts it from scores that may be large.
    Tensor lse(DType::f64, {q[0], q[1], q[2]});
    const auto start = std::chrono::steady_clock::now();
    attend(context, p.q, p.k, p.v, {.out = out, .lse = lse}, p.options);
    results.forward_ms = milliseconds_since(start);
    results.tensors.emplace_back("lse", lse.to(dtype));
    if (wants_weights) {
        Tensor& weights = results.add("weights", dtype, {q[0], q[1], q[2], p.k.shape()[2]});
        attention_weights(context, p.q, p.k, weights, {}, p.options);
    }
    if (wants_gradients) { backward(context, p, results.tensors[0].second, lse, results); }
    return results;
}

std::string kernel_of(const Problem& p) {
    const Shape& q = p.q.shape();
    const Shape& k = p.k.shape();
    return explain({.batch = q[0],
                    .heads = q[1],
                    .kv_heads = k[1],
                    .queries = q[2],
                    .keys = k[2],
                    .head_size = q[3],
                    .value_size = p.v.shape()[3],
                    .dtype = p.dtype},
                   p.options)
        .kernel;
}

void attend_command(const AttendArguments& arguments) {
    Context context(static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    std::error_code ignored;
    if (std::filesystem::equivalent(arguments.in, arguments.out, ignored)) {
        throw UsageError("--out: expected another file than the input, got '" + arguments.out + "'");
    }
    const SafetensorsFile file = SafetensorsFile::open(arguments.in);
    const Problem problem(file, arguments);
    const bool gradients = file.contains("dout") || file.contains("dlse");
    const Results results = compute(context, problem, arguments.weights, gradients);
    const std::string kernel = kernel_of(problem);

    std::vector<NamedView> views;
    for (const auto& [name, tensor] : results.tensors) { views.push_back({name, tensor}); }
    write_safetensors(arguments.out, views,
                      {{"spec", dump(to_spec(problem.options))}, {"kernel", kernel}, {"heed", HEED_VERSION}});

    fmt::print("inputs    q {}  k {}  v {}  {}\n", compact(problem.q.shape()), compact(problem.k.shape()),
               compact(problem.v.shape()), name_of(problem.dtype));
    fmt::print("options   {}\n", to_words(problem.options));
    fmt::print("kernel    {}, {} thread{}\n", kernel, context.threads(), context.threads() == 1 ? "" : "s");
    fmt::print("forward   {:.3f} ms\n", results.forward_ms);
    if (results.has_backward) { fmt::print("backward  {:.3f} ms\n", results.backward_ms); }
    for (const std::string& name : problem.unused) { fmt::print("not used  {}\n", printable(name)); }
    std::string written;
    for (const auto& [name, tensor] : results.tensors) {
        written += fmt::format("{}{} {}", written.empty() ? "" : "  ", name, compact(tensor.shape()));
    }
    fmt::print("results   {}  {}\n", written, name_of(problem.result_dtype()));
    fmt::print("written   {}\n", printable(arguments.out));
}

}  // namespace
}  // namespace heed::cli

void add_attend(CLI::App& app) {
    CLI::App* command = app.add_subcommand("attend", "Attention, forward and backward, on tensors from a file");
    const auto arguments = std::make_shared<heed::cli::AttendArguments>();
    command->add_option("IN", arguments->in, "safetensors file with q [B,H,T,D], k [B,G,S,D], v [B,G,S,E]")
        ->required()
        ->type_name("");
    command->add_option("--out", arguments->out, "safetensors file to write: out, lse, gradients where IN has dout")
        ->required()
        ->type_name("FILE");
    command->add_flag("--weights", arguments->weights, "Write the weights [B,H,T,S] too (before dropout)");
    command->add_option("--dtype", arguments->dtype, "Round q, k and v to f32, bf16, f16 or f64 first")
        ->type_name("TYPE");
    command->add_option("--threads", arguments->threads, "Number of threads; 0: one per core")->type_name("N");
    heed::cli::add_kernel(*command, arguments->kernel);
    command->get_option("--kernel")->description("As heed explain lists them, or best; small inputs: the reference");
    heed::cli::add_settings(*command, arguments->settings);
    command->footer(
        "Also read from IN, where it has them: bias, mask, key_lengths, query_lengths, alibi_slopes, sinks,\n"
        "cu_seqlens_q, cu_seqlens_k, query_positions, key_positions, dropout_keep, dout, dlse. The metadata key\n"
        "`spec` holds options as JSON; flags win over it. docs/cli.md has the shapes.\n\n"
        "Examples:\n"
        "  heed attend in.safetensors --out out.safetensors\n"
        "  heed attend in.safetensors --out out.safetensors --causal --window 255,0 --dtype bf16\n"
        "  heed attend in.safetensors --out out.safetensors --kernel reference --dtype f64 --weights");
    command->callback([arguments] { heed::cli::attend_command(*arguments); });
}
