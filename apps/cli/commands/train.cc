#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <heed/search.h>
#include <heed/train.h>

#include "commands/commands.h"
#include "commands/device.h"
#include "print/numbers.h"
#include "print/peak.h"
#include "print/progress.h"
#include "print/text.h"
#include "print/training.h"

namespace heed::cli {
namespace {

/// Settings that flags change in the file's, or in those of a built-in task.
struct TrainArguments {
    std::string config, task, text, lines, token_file, tokenizer, validation, out, attention, model;
    std::string token_type = "u16", schedule, dtype, device = "cpu";
    std::int64_t steps = -1, batch = -1, accumulate = -1, tokens = -1, d_model = -1, layers = -1, heads = -1;
    std::int64_t warmup = -1;
    double learning_rate = -1, dropout = -1;
    std::int64_t seed = -1;
    int threads = 0;
    bool resume = false, quiet = false, packed = false;
};

std::string file_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || text.str().empty()) { throw UsageError(path + ": cannot be read, or is empty"); }
    return text.str();
}

/// Paths of a file count from the file's own folder.
void resolve(TrainConfig& config, const std::filesystem::path& folder) {
    DataConfig& data = config.data;
    for (std::filesystem::path* path : {&data.text, &data.lines, &data.token_file, &data.tokenizer, &data.validation}) {
        if (!path->empty() && path->is_relative()) { *path = folder / *path; }
    }
}

/// A small decoder for a person's own text.
TrainConfig text_config() {
    TrainConfig config = task_config("grammar");
    config.data.task.clear();
    config.model.vocab = 0;
    config.model.d_model = 128;
    config.model.pad = config.model.bos = std::nullopt;
    config.model.eos.clear();
    for (LayerConfig& layer : config.model.decoder.layers) { layer.feed_forward.size = 512; }
    config.model.decoder.layers.resize(4, config.model.decoder.layers.front());
    config.options.steps = 1000;
    config.options.batch = 16;
    config.options.tokens = 256;
    return config;
}

void set_sizes(const TrainArguments& a, ModelConfig& model) {
    for (StackConfig* stack : {&model.encoder, &model.decoder}) {
        if (stack->layers.empty()) { continue; }
        if (a.layers > 0) { stack->layers.resize(static_cast<std::size_t>(a.layers), stack->layers.front()); }
        for (LayerConfig& layer : stack->layers) {
            if (a.heads > 0) { layer.attention.heads = layer.attention.kv_heads = a.heads; }
            if (a.d_model > 0) {
                layer.attention.head_size = layer.attention.value_size = 0;
                layer.feed_forward.size = 4 * a.d_model;
            }
        }
    }
    if (a.d_model > 0) { model.d_model = a.d_model; }
}

void set_options(const TrainArguments& a, TrainOptions& o) {
    const auto set = [](std::int64_t given, std::int64_t least, std::int64_t& to) {
        if (given >= least) { to = given; }
    };
    set(a.steps, 0, o.steps);
    set(a.batch, 1, o.batch);
    set(a.accumulate, 1, o.accumulate);
    set(a.tokens, 1, o.tokens);
    set(a.warmup, 0, o.warmup);
    if (a.learning_rate > 0) { o.learning_rate = a.learning_rate; }
    if (a.schedule == "constant") { o.schedule = Schedule::constant; }
    if (a.schedule == "cosine") { o.schedule = Schedule::cosine; }
    if (a.schedule == "paper") { o.schedule = Schedule::paper; }
    if (a.seed >= 0) { o.seed = static_cast<std::uint64_t>(a.seed); }
    if (!a.dtype.empty()) { o.dtype = parse_dtype("--dtype", a.dtype); }
}

TrainConfig config_of(const TrainArguments& a) {
    const auto sources =
        std::ranges::count_if(std::initializer_list<std::string_view>{a.config, a.task, a.text, a.lines, a.token_file},
                              [](std::string_view source) { return !source.empty(); });
    if (sources != 1) { throw UsageError("expected a CONFIG, --task, --text, --lines or --token-file, one of them"); }
    TrainConfig config;
    if (!a.config.empty()) {
        config = read_train_config(file_text(a.config));
        resolve(config, std::filesystem::path(a.config).parent_path());
    } else if (!a.task.empty()) {
        config = task_config(a.task);
    } else {
        config = text_config();
        config.data.text = a.text;
        config.data.lines = a.lines;
        config.data.token_file = a.token_file;
        config.data.token_type = a.token_type == "u32" ? TokenType::u32 : TokenType::u16;
    }
    if (!a.tokenizer.empty()) { config.data.tokenizer = a.tokenizer; }
    if (!a.validation.empty()) { config.data.validation = a.validation; }
    config.data.packed = config.data.packed || a.packed;
    set_options(a, config.options);
    set_sizes(a, config.model);
    if (a.dropout >= 0) { config.model.dropout = config.model.attention_dropout = a.dropout; }
    if (!a.attention.empty()) { set_attention(config.model, a.attention); }
    return config;
}

/// Of a run its best model is meant.
std::filesystem::path folder_of_model(const std::filesystem::path& given) {
    return std::filesystem::exists(given / "config.json") ? given : given / "best";
}

/// A model goes on with the tokenizer that it came with.
void take_tokenizer(const TrainArguments& a, DataConfig& data) {
    const bool text = !data.text.empty() || !data.lines.empty();
    if (!text || !data.tokenizer.empty()) { return; }
    const std::filesystem::path file = folder_of_model(a.model) / "tokenizer.json";
    if (!std::filesystem::exists(file)) {
        throw UsageError("--model: expected a folder with a tokenizer.json, or --tokenizer beside it, got " + a.model);
    }
    data.tokenizer = file;
}

/// Ctrl-C ends the step in progress, saves and stops; a second one ends the program.
volatile std::sig_atomic_t interrupted = 0;
void interrupt(int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
}

/// Templates and settings that stand beside a model, so that the one that comes out of it is as complete.
void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to) {
    for (const char* name :
         {"generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
        if (!std::filesystem::exists(from / name)) { continue; }
        std::filesystem::create_directories(to);
        std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing);
    }
}

void train_command(const TrainArguments& a) {
    TrainConfig config = config_of(a);
    if (!a.model.empty()) { take_tokenizer(a, config.data); }
    if (!a.resume && std::filesystem::exists(std::filesystem::path(a.out) / "run.json")) {
        throw UsageError("--out: expected a folder without a run, got " + a.out + " (--resume goes on with it)");
    }
    const std::unique_ptr<Context> where = context_on(a.device, a.threads);
    Context& context = *where;
    std::unique_ptr<Trainer> trainer = a.model.empty()
                                           ? std::make_unique<Trainer>(context, config)
                                           : std::make_unique<Trainer>(context, config, Model::load(a.model));
    if (!a.model.empty()) { copy_companions(folder_of_model(a.model), std::filesystem::path(a.out) / "best"); }
    const std::int64_t parameters = trainer->model().parameters().elements();
    fmt::print("{} parameters, {} steps of {} sequences, {} on {}, to {}\n", numbers::grouped(parameters),
               config.options.steps, config.options.batch, name_of(config.options.dtype), where_text(context), a.out);
    ProgressLine line(a.quiet);
    // Of what large matrix products reach here; nothing where the work of a token cannot be said in one number.
    const double work =
        training_operations(config.model.vocab > 0 ? config.model : trainer->model().config(), config.options.tokens);
    const double peak = work > 0 ? product_peak(context, config.options.dtype) : 0;
    const auto share_of_peak = [&](double tokens_per_second) {
        const double share = peak > 0 ? 100 * tokens_per_second * work / peak : 0;
        // More than all of it: something else ran while the peak was measured.
        return share > 0 && share <= 100 ? fmt::format("  {:.0f} % of peak", share) : std::string();
    };
    interrupted = 0;
    const auto before = std::signal(SIGINT, interrupt);
    std::vector<LossPoint> curve;
    RunOptions options;
    options.resume = a.resume;
    options.progress = [&](const RunEvent& event) {
        curve.push_back({event.step.step, event.step.loss, event.validation ? event.validation->loss : NAN});
        const double share = static_cast<double>(event.step.step) / static_cast<double>(config.options.steps);
        const double left = event.seconds / static_cast<double>(curve.size()) *
                            static_cast<double>(config.options.steps - event.step.step);
        line.show(share, fmt::format("step {}  loss {:.4f}  {} tokens/s{}  {} left{}", event.step.step, event.step.loss,
                                     numbers::grouped(static_cast<std::int64_t>(event.tokens_per_second)),
                                     share_of_peak(event.tokens_per_second), duration_text(left),
                                     event.step.skipped ? "  (skipped)" : ""));
        if (event.validation != nullptr) {
            line.lasting(fmt::format("step {:>6}  loss {:.4f}  validation {:.4f}  exact {:5.1f} %  {} tokens/s{}{}",
                                     event.step.step, event.step.loss, event.validation->loss,
                                     100 * event.validation->exact,
                                     numbers::grouped(static_cast<std::int64_t>(event.tokens_per_second)),
                                     share_of_peak(event.tokens_per_second), event.best ? "  best" : ""));
        }
        return interrupted == 0;
    };
    const RunResult result = run_training(*trainer, a.out, options);
    std::signal(SIGINT, before);
    line.clear();
    if (result.skipped > 0) { fmt::print("{} steps were skipped: gradients were not finite\n", result.skipped); }
    if (!curve.empty()) { write_loss_chart(std::filesystem::path(a.out) / "loss.svg", curve); }
    if (result.steps < config.options.steps) {
        fmt::print("stopped at step {}; heed train ... --resume goes on from here\n", result.steps);
        return;
    }
    if (!config.data.task.empty()) { show_answers(context, trainer->model(), config, 5); }
    fmt::print("best validation loss {:.4f}: {}/best\n", result.best_loss, a.out);
    const ModelKind kind = trainer->model().config().kind;
    if (trainer->data().tokenizer() != nullptr && kind != ModelKind::encoder) {
        fmt::print("try it: heed {} {} \"...\"\n", kind == ModelKind::decoder ? "generate" : "translate", a.out);
    }
}

// ---- eval ----------------------------------------------------------------------------------------------------------

struct EvalArguments {
    std::string run, device = "cpu";
    std::int64_t batches = 16;
    int threads = 0;
    bool json = false;
};

void eval_command(const EvalArguments& a) {
    const std::filesystem::path run = a.run;
    const TrainConfig config = read_train_config(file_text((run / "run.json").string()));
    const std::unique_ptr<Context> where = context_on(a.device, a.threads);
    Context& context = *where;
    const Model model = Model::load(run / "best", {.device = context.device()});
    const auto data = open_data(config);
    const Score score = score_batches(context, model, *data, a.batches, DType::f32);
    if (a.json) {
        fmt::print("{{\"loss\": {}, \"perplexity\": {}, \"token_accuracy\": {}, \"exact\": {}, \"sequences\": {}}}\n",
                   shortest(score.loss), shortest(std::exp(score.loss)), shortest(score.token_accuracy),
                   shortest(score.exact), score.sequences);
        return;
    }
    fmt::print("loss {:.4f}  perplexity {:.3f}  tokens right {:.2f} %  sequences right {:.2f} % of {}\n", score.loss,
               std::exp(score.loss), 100 * score.token_accuracy, 100 * score.exact, score.sequences);
    if (data->bytes_per_token() > 0) {
        fmt::print("{:.3f} bits a byte\n", score.loss / std::log(2.0) / data->bytes_per_token());
    }
    if (!config.data.task.empty()) { show_answers(context, model, config, 5); }
}

// ---- compare -------------------------------------------------------------------------------------------------------

void compare_command(const TrainArguments& a, const std::string& kinds) {
    std::vector<std::string> words;
    std::stringstream list(kinds);
    for (std::string word; std::getline(list, word, ',');) { words.push_back(word); }
    if (words.empty()) { throw UsageError("--kinds: expected names such as mha,gqa,linear, got none"); }
    for (const std::string& word : words) {  // before hours are spent on the first
        ModelConfig model = config_of(a).model;
        set_attention(model, word);
    }
    std::vector<ComparedRun> runs;
    for (const std::string& word : words) {
        TrainConfig config = config_of(a);
        set_attention(config.model, word);
        const std::unique_ptr<Context> where = context_on(a.device, a.threads);
        Context& context = *where;
        Trainer trainer(context, config);
        ProgressLine line(a.quiet);
        ComparedRun run;
        run.kind = word;
        run.parameters = trainer.model().parameters().elements();
        RunOptions options;
        options.progress = [&](const RunEvent& event) {
            run.curve.push_back({event.step.step, event.step.loss, event.validation ? event.validation->loss : NAN});
            line.show(static_cast<double>(event.step.step) / static_cast<double>(config.options.steps),
                      fmt::format("{}: step {}  loss {:.4f}", word, event.step.step, event.step.loss));
            return true;
        };
        run.result = run_training(trainer, std::filesystem::path(a.out) / word, options);
        line.clear();
        run.cache = cache_bytes(trainer.config().model);
        run.far = loss_beyond(context, trainer.model(), config);
        line.lasting(fmt::format("{:<11} loss {:.4f}  exact {:5.1f} %  {} tokens/s", word, run.result.last.loss,
                                 100 * run.result.last.exact,
                                 numbers::grouped(static_cast<std::int64_t>(run.result.tokens_per_second))));
        runs.push_back(std::move(run));
    }
    print_comparison(runs);
    write_comparison(std::filesystem::path(a.out), runs);
}

/// A number that makes no sense is an error, not the default.
void check_numbers(CLI::App& command) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    for (const char* name : {"--batch", "--accumulate", "--tokens", "--d-model", "--layers", "--heads"}) {
        command.get_option(name)->check(CLI::Range(std::int64_t{1}, most).description(""));
    }
    for (const char* name : {"--steps", "--warmup", "--seed"}) {
        command.get_option(name)->check(CLI::Range(std::int64_t{0}, most).description(""));
    }
    command.get_option("--threads")->check(CLI::Range(0, 1 << 14).description(""));
    command.get_option("--learning-rate")->check(CLI::Range(1e-12, 1e3).description(""));
    command.get_option("--dropout")->check(CLI::Range(0.0, 0.999).description(""));
}

void add_common(CLI::App& command, TrainArguments& a) {
    command.add_option("CONFIG", a.config, "A JSON file: model, data, train (see docs/train.md)")->type_name("FILE");
    command.add_option("--task", a.task, "A built-in task: dates, grammar, induction, copy, brackets or sort")
        ->type_name("NAME");
    command.add_option("--text", a.text, "Your own text: the next byte, or token, is learned")->type_name("FILE");
    command.add_option("--lines", a.lines, "JSON lines with \"text\", or \"source\" and \"target\"")->type_name("FILE");
    command.add_option("--token-file", a.token_file, "Token ids end to end, such as heed tokenize --token-file writes")
        ->type_name("FILE");
    command.add_option("--token-type", a.token_type, "Of --token-file: u16 (default) or u32")
        ->check(CLI::IsMember({"u16", "u32"}).description(""))
        ->type_name("TYPE");
    command.add_option("--validation", a.validation, "Held-out data of the same form (default: the last tenth)")
        ->type_name("FILE");
    command.add_flag("--packed", a.packed, "Lines end to end without padding; no document sees another");
    command.add_option("--tokenizer", a.tokenizer, "A tokenizer.json (default: that of --model, or bytes)")
        ->type_name("FILE");
    command.add_option("--out", a.out, "Folder for the run")->type_name("FOLDER")->required();
    command.add_option("--steps", a.steps, "Steps")->type_name("N");
    command.add_option("--batch", a.batch, "Sequences a step")->type_name("N");
    command.add_option("--accumulate", a.accumulate, "Parts that a step is computed in, for less memory")
        ->type_name("N");
    command.add_option("--tokens", a.tokens, "Tokens a sequence, at most")->type_name("N");
    command.add_option("--learning-rate", a.learning_rate, "Highest learning rate")->type_name("X");
    command.add_option("--schedule", a.schedule, "How it changes: constant, cosine or paper (2017)")
        ->check(CLI::IsMember({"constant", "cosine", "paper"}).description(""))
        ->type_name("NAME");
    command.add_option("--warmup", a.warmup, "Steps until the learning rate is reached")->type_name("N");
    command.add_option("--dropout", a.dropout, "Share of numbers that are dropped while training")->type_name("P");
    command.add_option("--d-model", a.d_model, "Numbers of a token")->type_name("N");
    command.add_option("--layers", a.layers, "Layers (of each stack)")->type_name("N");
    command.add_option("--heads", a.heads, "Heads")->type_name("N");
    command.add_option("--dtype", a.dtype, "Compute in f32 (default) or bf16")->type_name("TYPE");
    command.add_option("--seed", a.seed, "Seed of weights, batches and dropout")->type_name("N");
    add_device_option(command, a.device);
    command.add_option("--threads", a.threads, "Threads (default: every core)")->type_name("N");
    command.add_flag("--quiet", a.quiet, "No progress line");
    check_numbers(command);
}

}  // namespace
}  // namespace heed::cli

void add_train(CLI::App& app) {
    CLI::App* command = app.add_subcommand("train", "Train a transformer on a built-in task or on your own text");
    const auto arguments = std::make_shared<heed::cli::TrainArguments>();
    heed::cli::add_common(*command, *arguments);
    command
        ->add_option("--attention", arguments->attention,
                     "One of mha, gqa, mqa, mla, window, linear, gated, delta, gated_delta, infini or hybrid")
        ->type_name("KIND");
    command
        ->add_option("--model", arguments->model, "Go on with the model of this folder and its tokenizer (fine-tuning)")
        ->type_name("FOLDER");
    command->add_flag("--resume", arguments->resume, "Go on with the run in --out where it stopped");
    command->footer(
        "Examples:\n"
        "  heed train --task dates --out dates               an encoder-decoder that reads dates, in a minute\n"
        "  heed train --text book.txt --out book --steps 2000\n"
        "  heed generate book \"Once upon a time\"             what it writes\n"
        "  heed train --model MODEL --lines questions.jsonl --out tuned --learning-rate 2e-5\n"
        "  heed train --task induction --attention linear --out linear\n"
        "  heed train run.json --out run --resume            after whatever stopped it, with the same losses");
    command->callback([arguments] { heed::cli::train_command(*arguments); });
}

void add_eval(CLI::App& app) {
    CLI::App* command = app.add_subcommand("eval", "Loss and accuracy of a run's best model on held-out data");
    const auto arguments = std::make_shared<heed::cli::EvalArguments>();
    command->add_option("RUN", arguments->run, "Folder that heed train wrote")->type_name("FOLDER")->required();
    command->add_option("--batches", arguments->batches, "Batches of held-out data (default 16)")->type_name("N");
    heed::cli::add_device_option(*command, arguments->device);
    command->add_option("--threads", arguments->threads, "Threads (default: every core)")->type_name("N");
    command->add_flag("--json", arguments->json, "Print JSON");
    command->footer("Examples:\n  heed eval dates\n  heed eval dates --json");
    command->callback([arguments] { heed::cli::eval_command(*arguments); });
}

void add_compare(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("compare", "The same model and data with several kinds of attention, side by side");
    const auto arguments = std::make_shared<heed::cli::TrainArguments>();
    const auto kinds =
        std::make_shared<std::string>("mha,gqa,mqa,mla,window,linear,gated,delta,gated_delta,infini,hybrid");
    heed::cli::add_common(*command, *arguments);
    command->add_option("--kinds", *kinds, "Kinds of attention, separated by commas (default: all)")->type_name("LIST");
    command->footer(
        "Examples:\n"
        "  heed compare --task induction --out compared\n"
        "  heed compare --text book.txt --kinds mha,mla,linear,hybrid --steps 500 --out compared");
    command->callback([arguments, kinds] { heed::cli::compare_command(*arguments, *kinds); });
}
