#include <deque>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <heed/gguf.h>
#include <heed/safetensors.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ConvertArguments {
    std::string from, out, dtype;
};

constexpr auto convert_examples = R"(Examples:
  heed convert model.gguf --out folder                     a GGUF (llama) as Hugging Face has it
  heed convert path/to/model --dtype bf16 --out smaller    the same weights in another type
)";

/// Floats in another type; everything else of the folder is copied.
void convert_types(const std::filesystem::path& from, const std::filesystem::path& out, DType dtype) {
    if (!std::filesystem::exists(from / "model.safetensors")) {
        throw UsageError(from.string() + ": expected a folder with model.safetensors, got none");
    }
    const SafetensorsFile file = SafetensorsFile::open(from / "model.safetensors");
    std::deque<Tensor> tensors;
    std::vector<NamedView> views;
    for (const std::string& name : file.names()) {
        Tensor tensor = file.tensor(name);
        const bool is_float = tensor.dtype() == DType::f32 || tensor.dtype() == DType::f16 ||
                              tensor.dtype() == DType::bf16 || tensor.dtype() == DType::f64;
        tensors.push_back(is_float ? tensor.to(dtype) : std::move(tensor));
        views.push_back({name, tensors.back()});
    }
    std::filesystem::create_directories(out);
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
        const std::string extension = entry.path().extension().string();
        const bool copied =
            entry.is_regular_file() && (extension == ".json" || extension == ".jinja" || extension == ".txt");
        if (copied) {
            std::filesystem::copy_file(entry.path(), out / entry.path().filename(),
                                       std::filesystem::copy_options::overwrite_existing);
        }
    }
    write_safetensors(out / "model.safetensors", views, file.metadata());
}

void convert_command(const ConvertArguments& arguments) {
    const std::filesystem::path from(arguments.from), out(arguments.out);
    if (std::filesystem::exists(out) && std::filesystem::equivalent(from, out)) {
        throw UsageError("--out: expected another folder than the one that is read, got the same");
    }
    if (std::filesystem::is_directory(from)) {
        if (arguments.dtype.empty()) { throw UsageError("--dtype: expected f32, f16 or bf16 for a folder, got none"); }
        convert_types(from, out, parse_dtype("--dtype", arguments.dtype));
    } else {
        if (!arguments.dtype.empty()) { throw UsageError("--dtype: expected a folder to convert, got a file"); }
        convert_gguf(from, out);
    }
    fmt::print("{}: written\n", printable(arguments.out));
}

}  // namespace
}  // namespace heed::cli

void add_convert(CLI::App& app) {
    CLI::App* command = app.add_subcommand("convert", "A model in another format or type");
    const auto arguments = std::make_shared<heed::cli::ConvertArguments>();
    command->add_option("from", arguments->from, "A GGUF file, or a model's folder")->required()->type_name("");
    command->add_option("--out", arguments->out, "The folder to write")->required()->type_name("FOLDER");
    command->add_option("--dtype", arguments->dtype, "f32, f16 or bf16, for a folder")->type_name("TYPE");
    command->footer(heed::cli::convert_examples);
    command->callback([arguments] { heed::cli::convert_command(*arguments); });
}
