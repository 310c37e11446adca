#include "commands/commands.h"

#include <cstdio>
#include <new>
#include <regex>
#include <string>

#include <fmt/format.h>
#include <heed/error.h>
#include <CLI/CLI.hpp>

#include "print/text.h"

namespace heed::cli {
namespace {

constexpr int bad_input = 2;  // arguments and files that cannot be used
constexpr int failure = 1;    // everything else

/// One line, whatever the message holds.
int complain(const std::string& who, const std::string& what, int code) {
    constexpr std::size_t longest = 1000;
    const std::string line = printable(what.substr(0, longest));
    fmt::print(stderr, "{}: {}{}\n", who, line, what.size() > longest ? " ..." : "");
    return code;
}

/// CLI11 leaves two blank lines between groups.
std::string tidy(std::string help) {
    for (std::size_t at = 0; (at = help.find("\n\n\n", at)) != std::string::npos;) { help.erase(at, 1); }
    return help;
}

/// Every command, in the order of --help. A new one is a line here and in commands/commands.h.
constexpr void (*commands[])(CLI::App&) = {
    add_attend,       //
    add_cache,        //
    add_chat,         //
    add_compare,      //
    add_embed,        //
    add_convert,      //
    add_eval,         //
    add_explain,      //
    add_forward,      //
    add_generate,     //
    add_inspect,      //
    add_patterns,     //
    add_positions,    //
    add_score,        //
    add_serve,        //
    add_size,         //
    add_tokenize,     //
    add_train,        //
    add_translate,    //
    add_walkthrough,  //
};

/// Why no command was found: none was given, or none is called that.
std::string no_command(const CLI::App& app, int count, char** arguments) {
    std::string expected;
    const auto known = app.get_subcommands([](const CLI::App*) { return true; });
    for (std::size_t n = 0; n < known.size(); ++n) {
        expected += (n == 0 ? "" : n + 1 == known.size() ? " or " : ", ") + known[n]->get_name();
    }
    expected = "expected a command: " + expected + " (see heed --help)";
    return count < 2 ? expected : expected + ", got '" + arguments[1] + "'";
}

/// What CLI11 says of a value, in the words of heed's other errors.
std::string in_our_words(const std::string& text) {
    constexpr std::size_t longest = 400;  // a regular expression takes stack for every character
    if (text.size() > longest) { return text; }
    static const std::regex conversion(R"(Could not convert: (\S+) = (.*))");
    static const std::regex member(R"((\S+): (.*) not in \{(.*)\})");
    static const std::regex range(R"((\S+): Value (.*) not in range \[?(\S+) (?:-|to) ([^\]\s]+)\]?)");
    std::smatch part;
    if (std::regex_match(text, part, conversion)) {
        return fmt::format("{}: expected a number that fits, got '{}'", part.str(1), part.str(2));
    }
    if (std::regex_match(text, part, range)) {
        return fmt::format("{}: expected {} to {}, got {}", part.str(1), part.str(3), part.str(4), part.str(2));
    }
    if (std::regex_match(text, part, member)) {
        const std::string values = std::regex_replace(part.str(3), std::regex(",\\s*"), ", ");
        return fmt::format("{}: expected one of {}, got '{}'", part.str(1), values, part.str(2));
    }
    return text;
}

int run(int count, char** arguments) {
    CLI::App app("Attention: every kind of it, exact, and open to look into.", "heed");
    app.set_version_flag("--version", "heed " HEED_VERSION, "Print the version");
    app.set_help_flag("-h,--help", "Print this help");
    app.require_subcommand(1);
    for (const auto add : commands) { add(app); }
    app.footer(
        "Examples:\n"
        "  heed walkthrough                                  a small example, every number of it\n"
        "  heed attend in.safetensors --out out.safetensors  attention on tensors from a file\n"
        "  heed cache llama-3-8b --memory 24                 what caches cost, and how many fit\n"
        "  heed chat path/to/model                           talk to a model, line by line\n"
        "  heed compare --task induction --out compared      kinds of attention, trained side by side\n"
        "  heed eval dates                                   how good a trained model is\n"
        "  heed convert model.gguf --out folder              a model in another format or type\n"
        "  heed embed path/to/model \"A text\" \"Another\"       texts as vectors\n"
        "  heed explain --shape 1,32,8,4096,4096,128 --causal --dtype bf16\n"
        "  heed forward MODEL in.safetensors --out out.safetensors --write logits,greedy=16\n"
        "  heed generate path/to/model \"Once upon a time\"    a text, continued by a model\n"
        "  heed inspect path/to/model                        what a model is and what it weighs\n"
        "  heed patterns \"causal & window(255, 0)\"           a mask pattern, drawn, and its cost\n"
        "  heed positions --svg rope.svg                     rotary frequencies and their scalings, drawn\n"
        "  heed score path/to/model --file book.txt          perplexity, bits per byte\n"
        "  heed serve                                        a page that shows attention at work\n"
        "  heed size llama-3-8b                              parameters, operations, cache\n"
        "  heed tokenize tokenizer.json \"Hello world\"        tokens, their ids and texts\n"
        "  heed train --task dates --out dates               a small transformer, trained in a minute\n"
        "  heed translate path/to/model \"Guten Morgen\"       with an encoder-decoder\n\n"
        "heed COMMAND --help has the options and examples of a command.\n"
        "Exit codes: 0 done, 2 arguments or files that cannot be used, 1 anything else.");
    const auto who = [&] {
        const auto chosen = app.get_subcommands();
        return chosen.empty() ? std::string("heed") : "heed " + chosen.front()->get_name();
    };
    try {
        app.parse(count, arguments);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", tidy(app.help()));
    } catch (const CLI::CallForVersion& version) {
        fmt::print("{}\n", version.what());
    } catch (const CLI::RequiredError& error) {
        if (!app.get_subcommands().empty()) { return complain(who(), error.what(), bad_input); }
        return complain("heed", no_command(app, count, arguments), bad_input);
    } catch (const CLI::ParseError& error) {
        return complain(who(), in_our_words(error.what()), bad_input);
    } catch (const UsageError& error) { return complain(who(), error.what(), bad_input); } catch (const Error& error) {
        return complain(who(), error.what(), bad_input);
    } catch (const FileError& error) {
        return complain(who(), error.what(), bad_input);
    } catch (const std::bad_alloc&) {
        return complain(who(), "out of memory", failure);
    } catch (const std::exception& error) { return complain(who(), error.what(), failure); }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        return complain(who(), "cannot write to standard output", failure);
    }
    return 0;
}

}  // namespace
}  // namespace heed::cli

// Only what cannot even build its message leaves run(): out of memory twice over.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int count, char** arguments) { return heed::cli::run(count, arguments); }
