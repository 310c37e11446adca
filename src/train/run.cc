#include <heed/train.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/refuse.h"
#include "io/file.h"

namespace heed {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void write_whole(const std::filesystem::path& path, const std::string& text) {
    AtomicFile file("run_training", path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

/// log.jsonl: a line a step. A run that goes on keeps the lines up to where it goes on from, so that in the end the log
/// reads as if nothing had happened.
class Log {
public:
    Log(std::filesystem::path path, std::int64_t keep_up_to) : path_(std::move(path)) {
        std::string kept;
        if (keep_up_to > 0) {
            std::ifstream old(path_, std::ios::binary);
            for (std::string line; std::getline(old, line);) {
                const Json json = Json::parse(line, nullptr, false);
                if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) { continue; }
                if (json["step"].get<std::int64_t>() > keep_up_to) { continue; }
                if (json.contains("validation_loss") && json["validation_loss"].is_number()) {
                    best_ = std::min(best_, json["validation_loss"].get<double>());
                }
                kept += line + "\n";
            }
        }
        write_whole(path_, kept);
        stream_.open(path_, std::ios::binary | std::ios::app);
        check();
    }
    double best() const { return best_; }
    void add(const Json& line) {
        stream_ << line.dump() << '\n';
        stream_.flush();
        check();
    }

private:
    void check() const {
        if (!stream_) { throw FileError("[run_training] " + path_.string() + ": cannot be written"); }
    }

    std::filesystem::path path_;
    std::ofstream stream_;
    double best_ = std::numeric_limits<double>::infinity();
};

Json step_line(const StepReport& step) {
    Json line = {{"step", step.step},
                 {"loss", step.loss},
                 {"gradient_norm", step.gradient_norm},
                 {"learning_rate", step.learning_rate},
                 {"tokens", step.tokens}};
    if (step.skipped) { line["skipped"] = true; }
    return line;
}

/// As every other command takes it.
void save_best(const Trainer& trainer, const std::filesystem::path& folder) {
    trainer.model().save(folder);
    if (const Tokenizer* tokenizer = trainer.data().tokenizer()) {
        write_whole(folder / "tokenizer.json", tokenizer->to_json());
    }
}

}  // namespace

RunResult run_training(Trainer& trainer, const std::filesystem::path& folder, const RunOptions& options) {
    const TrainOptions& o = trainer.config().options;
    const std::filesystem::path last = folder / "last.safetensors";
    const bool there = std::filesystem::exists(last) || std::filesystem::exists(folder / "run.json");
    if (there && !options.resume) {
        refuse("run_training", "folder", "one without a run in it", folder.string() + "; resume it, or choose another");
    }
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) { throw FileError("[run_training] " + folder.string() + ": cannot be made: " + error.message()); }
    if (options.resume && std::filesystem::exists(last)) { trainer.resume(last); }
    write_whole(folder / "run.json", write_train_config(trainer.config()));
    Log log(folder / "log.jsonl", trainer.step());

    const std::int64_t tenth = std::max<std::int64_t>(1, o.steps / 10);
    const std::int64_t validate_every = o.validate_every > 0 ? o.validate_every : tenth;
    const std::int64_t save_every = o.save_every > 0 ? o.save_every : validate_every;
    const Clock::time_point begin = Clock::now();
    double training = 0;
    std::int64_t tokens = 0;
    RunResult result;
    double best = log.best();
    for (bool more = true; more && trainer.step() < o.steps;) {
        const Clock::time_point step_begin = Clock::now();
        RunEvent event;
        event.step = trainer.train_step();
        training += seconds_since(step_begin);
        tokens += event.step.tokens;
        Json line = step_line(event.step);
        const bool end = trainer.step() == o.steps;
        Score score;
        if (trainer.step() % validate_every == 0 || end) {
            score = trainer.validate();
            event.validation = &score;
            result.last = score;
            event.best = score.loss < best;
            line["validation_loss"] = score.loss;
            line["validation_exact"] = score.exact;
            if (event.best) {
                best = score.loss;
                save_best(trainer, folder / "best");
            }
        }
        log.add(line);
        event.seconds = seconds_since(begin);
        event.tokens_per_second = training > 0 ? static_cast<double>(tokens) / training : 0;
        result.tokens_per_second = event.tokens_per_second;
        more = !options.progress || options.progress(event);
        if (trainer.step() % save_every == 0 || end || !more) { trainer.save(last); }
    }
    result.steps = trainer.step();
    result.skipped = trainer.skipped();
    result.best_loss = best;
    result.peak_bytes = trainer.peak_bytes();
    return result;
}

}  // namespace heed
