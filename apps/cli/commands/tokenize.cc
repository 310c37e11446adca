#include <fmt/format.h>
#include <heed/error.h>
#include <heed/tokenizer.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct TokenizeArguments {
    std::string path, file, ids, train, out, token_file, token_type = "u16";
    std::vector<std::string> text;
    std::int64_t vocabulary = 30000;
    bool plain = false, json = false, only_ids = false, no_special = false;
};

constexpr auto tokenize_examples = R"(Examples:
  heed tokenize path/to/model "Hello world"        every token, its id and its text
  heed tokenize tokenizer.json --file book.txt --only-ids > ids.txt
  heed tokenize tokenizer.json --ids 15496,995      the text of ids
  heed tokenize --train book.txt --vocabulary 8000 --out tokenizer.json
  heed tokenize tokenizer.json --file book.txt --plain --token-file book.bin    for heed train --token-file
Without text, --file or --ids, standard input is read.
)";

std::string contents_of(std::istream& stream, const std::string& name) {
    std::string text(std::istreambuf_iterator<char>(stream), {});
    if (stream.bad()) { throw FileError("[tokenize] " + name + ": cannot read"); }
    return text;
}

std::string contents_of(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    if (!file) { throw FileError("[tokenize] " + name + ": cannot open"); }
    return contents_of(file, name);
}

void train_tokenizer(const TokenizeArguments& arguments) {
    if (arguments.out.empty()) { throw UsageError("--train: expected --out FILE for the tokenizer, got none"); }
    const std::string text = contents_of(arguments.train);
    const std::vector<std::string_view> texts{text};
    const Tokenizer tokenizer = train_byte_bpe(texts, {.vocabulary = arguments.vocabulary});
    std::ofstream file(arguments.out, std::ios::binary);
    file << tokenizer.to_json();
    if (!file.flush()) { throw FileError("[tokenize] " + arguments.out + ": cannot write"); }
    fmt::print("{}: {} tokens from {} bytes\n", arguments.out, tokenizer.size(), text.size());
}

std::string given_text(const TokenizeArguments& arguments) {
    if (!arguments.file.empty()) { return contents_of(arguments.file); }
    if (arguments.text.empty()) { return contents_of(std::cin, "standard input"); }
    std::string text = arguments.text.front();
    for (std::size_t n = 1; n < arguments.text.size(); ++n) { text += " " + arguments.text[n]; }
    return text;
}

void print_tokens(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids, std::size_t bytes) {
    for (const std::int64_t id : ids) {
        const std::int64_t one[] = {id};
        fmt::print("{:>8}  {:<24} {}\n", id, printable(tokenizer.token_of(id).value_or("")),
                   tokenizer.is_special(id) ? "special" : "\"" + printable(tokenizer.decode(one)) + "\"");
    }
    fmt::print("{} tokens, {} bytes, {:.2f} bytes a token\n", ids.size(), bytes,
               ids.empty() ? 0.0 : static_cast<double>(bytes) / static_cast<double>(ids.size()));
}

/// Little-endian ids end to end.
void write_token_file(const TokenizeArguments& a, const std::vector<std::int64_t>& ids) {
    const int width = a.token_type == "u32" ? 4 : 2;
    std::string bytes;
    bytes.reserve(ids.size() * static_cast<std::size_t>(width));
    for (const std::int64_t id : ids) {
        if (id >> (8 * width) != 0) {
            throw UsageError(fmt::format("--token-type: expected u32 for ids such as {}, got {}", id, a.token_type));
        }
        for (int byte = 0; byte < width; ++byte) { bytes += static_cast<char>(id >> (8 * byte) & 0xFF); }
    }
    std::ofstream file(a.token_file, std::ios::binary);
    file << bytes;
    if (!file.flush()) { throw FileError("[tokenize] " + a.token_file + ": cannot write"); }
    fmt::print("{}: {} tokens of {} bytes\n", a.token_file, ids.size(), width);
}

void tokenize_command(const TokenizeArguments& arguments) {
    if (!arguments.train.empty()) { return train_tokenizer(arguments); }
    if (arguments.path.empty()) { throw UsageError("expected a tokenizer.json or a model's folder, got none"); }
    const Tokenizer tokenizer{std::filesystem::path(arguments.path)};
    if (!arguments.ids.empty()) {
        constexpr std::int64_t most = 0x7FFFFFFF;
        fmt::print("{}\n", tokenizer.decode(parse_integers("--ids", arguments.ids, 0, most), arguments.no_special));
        return;
    }
    const std::string text = given_text(arguments);
    const std::vector<std::int64_t> ids = tokenizer.encode(text, {.add_special_tokens = !arguments.plain});
    if (!arguments.token_file.empty()) { return write_token_file(arguments, ids); }
    if (arguments.json) {
        nlohmann::ordered_json report = {{"ids", ids}, {"tokens", nlohmann::ordered_json::array()}};
        for (const std::int64_t id : ids) { report["tokens"].push_back(tokenizer.token_of(id).value_or("")); }
        fmt::print("{}\n", dump(report));
    } else if (arguments.only_ids) {
        for (std::size_t n = 0; n < ids.size(); ++n) { fmt::print("{}{}", n > 0 ? " " : "", ids[n]); }
        fmt::print("\n");
    } else {
        print_tokens(tokenizer, ids, text.size());
    }
}

}  // namespace
}  // namespace heed::cli

void add_tokenize(CLI::App& app) {
    CLI::App* command = app.add_subcommand("tokenize", "Text to tokens and back; train a tokenizer");
    const auto arguments = std::make_shared<heed::cli::TokenizeArguments>();
    command->add_option("tokenizer", arguments->path, "A tokenizer.json, or the folder that has one")->type_name("");
    command->add_option("text", arguments->text, "What to tokenize")->type_name("");
    command->add_option("--file", arguments->file, "Tokenize this file")->type_name("FILE");
    command->add_option("--ids", arguments->ids, "Ids to turn into text, such as 1,2,3")->type_name("LIST");
    command->add_flag("--no-special", arguments->no_special, "With --ids: leave special tokens out");
    command->add_flag("--plain", arguments->plain, "Without the special tokens that go around a text");
    command->add_flag("--only-ids", arguments->only_ids, "Print the ids alone, on one line");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->add_option("--token-file", arguments->token_file, "Write the ids to this file, as heed train reads them")
        ->type_name("FILE");
    command->add_option("--token-type", arguments->token_type, "Of --token-file: u16 or u32")
        ->check(CLI::IsMember({"u16", "u32"}).description(""))
        ->type_name("TYPE")
        ->capture_default_str();
    command->add_option("--train", arguments->train, "Train a byte-level BPE on this file")->type_name("FILE");
    command->add_option("--vocabulary", arguments->vocabulary, "With --train: how many tokens")
        ->check(CLI::Range(std::int64_t{256}, std::int64_t{1} << 24).description(""))
        ->type_name("N")
        ->capture_default_str();
    command->add_option("--out", arguments->out, "With --train: where to write the tokenizer.json")->type_name("FILE");
    command->footer(heed::cli::tokenize_examples);
    command->callback([arguments] { heed::cli::tokenize_command(*arguments); });
}
