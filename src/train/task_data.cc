#include "base/refuse.h"
#include "train/data.h"
#include "train/rows.h"

namespace heed {
namespace {

class TaskData final : public TrainData {
public:
    explicit TaskData(const TrainConfig& config)
        : task_(config.data.task),
          options_(config.options),
          kind_(config.model.kind),
          tokenizer_(task_tokenizer(config.model.kind)) {
        static_cast<void>(task_example(task_, 0, 0, false));  // refuses a task that is none
        for (const TaskInfo& info : tasks()) {
            if (info.name == task_ && (info.kind == ModelKind::encoder) != (kind_ == ModelKind::encoder)) {
                refuse("open_data", "task", "one for this kind of model", task_);
            }
        }
    }
    std::int64_t vocab() const override { return task_vocab(); }
    const Tokenizer* tokenizer() const override { return &tokenizer_; }
    TrainBatch batch(std::int64_t number) const override {
        return make(number * options_.batch, options_.batch, false);
    }
    TrainBatch validation(std::int64_t number) const override {
        return make(number * options_.batch, options_.batch, true);
    }

private:
    TrainBatch make(std::int64_t first, std::int64_t count, bool held_out) const {
        Rows inputs, labels;
        for (std::int64_t n = first; n < first + count; ++n) {
            // Held-out examples are the same whatever the seed of the run: scores of two runs can be compared.
            const TaskExample example = task_example(task_, held_out ? 0 : options_.seed, n, held_out);
            if (kind_ == ModelKind::encoder) {
                inputs.ids.push_back(task_encode(example.source));
                labels.ids.push_back(task_encode(example.target));
                for (std::size_t t = 0; t < example.target.size(); ++t) {
                    if (example.target[t] == '.') { labels.ids.back()[t] = no_label; }
                }
            } else {
                add_example(inputs, labels, kind_, in_ids(example), options_.tokens);
                // The answer stands at the end, with the end token behind it.
                std::vector<std::int64_t>& row = labels.ids.back();
                const std::size_t length = example.asked.size() + 1;
                for (std::size_t t = 0; t < example.asked.size() && row.size() >= length; ++t) {
                    if (example.asked[t] != '1') { row[row.size() - length + t] = no_label; }
                }
            }
        }
        return batch_of(inputs, labels, 0, kind_);
    }

    /// With the special tokens that task_tokenizer puts around a prompt, and the end behind the answer.
    Example in_ids(const TaskExample& example) const {
        Example ids{tokenizer_.encode(example.source), task_encode(example.target)};
        ids.target.push_back(2);
        return ids;
    }

    std::string task_;
    TrainOptions options_;
    ModelKind kind_;
    Tokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<TrainData> open_task(const TrainConfig& config) { return std::make_unique<TaskData>(config); }

}  // namespace heed
