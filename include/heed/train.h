#pragma once
/// Training: data, schedule, steps, checkpoints that survive anything.
///
///     heed::TrainConfig config = heed::task_config("dates");           // or read_train_config(text of a file)
///     heed::Trainer trainer(context, config);
///     while (trainer.step() < config.options.steps) { trainer.train_step(); }
///     heed::Score score = trainer.validate();
///
/// What a step does depends on the configuration, the seed and the number of the step alone: batches, masks and dropout
/// come from counters, sums are in a fixed order. So a run that was stopped at any moment and resumed goes on with the
/// same losses, bit for bit, and so does one with another number of threads.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <heed/context.h>
#include <heed/model.h>
#include <heed/model_config.h>
#include <heed/tokenizer.h>

namespace heed {

// ---- Built-in tasks ------------------------------------------------------------------------------------------------

/// A question and its answer. Of a language (grammar) the question is empty; an encoder's answer stands at the places
/// of the question, '.' where nothing is asked.
struct TaskExample {
    std::string source;
    std::string target;
    std::string asked = {};  ///< as long as target: '1' where the answer counts; empty: everywhere
};

struct TaskInfo {
    std::string name;
    ModelKind kind = ModelKind::decoder;
    std::string what;  ///< one line for people
};
/// dates, grammar, induction, copy, brackets, sort.
HEED_API std::vector<TaskInfo> tasks();

/// Example `index` of a task; the same for a seed everywhere. Held-out examples have nothing in common with the others:
/// dates are split by day, all else by a hash of the question (of the sentence, where there is no question).
HEED_API TaskExample task_example(std::string_view task, std::uint64_t seed, std::int64_t index, bool held_out);

/// The alphabet of the built-in tasks: one id a character. 0 padding, 1 start, 2 end.
HEED_API std::int64_t task_vocab();
HEED_API std::vector<std::int64_t> task_encode(std::string_view text);
HEED_API std::string task_decode(std::span<const std::int64_t> ids);
/// The same as a tokenizer: a decoder's prompt begins with the start token, that of an encoder-decoder ends with the
/// end token. Capital letters count as small ones, and what the alphabet lacks is left out.
HEED_API Tokenizer task_tokenizer(ModelKind kind);

// ---- Configuration -------------------------------------------------------------------------------------------------

enum class Schedule : std::uint8_t {
    constant,  ///< after a linear warm-up
    cosine,    ///< down to `final_rate` times the rate at the last step, after a linear warm-up
    paper,     ///< that of 2017: d_model^-1/2 min(t^-1/2, t warmup^-3/2), times learning_rate
};

enum class Optimiser : std::uint8_t { adamw, adam };

struct TrainOptions {
    std::int64_t steps = 1000;
    std::int64_t batch = 32;      ///< sequences of a step, all accumulated parts together
    std::int64_t accumulate = 1;  ///< parts that a step's batch is computed in
    std::int64_t tokens = 256;    ///< of a sequence; longest one for tasks and lines
    Optimiser optimiser = Optimiser::adamw;
    Schedule schedule = Schedule::cosine;
    double learning_rate = 1e-3;
    std::int64_t warmup = 100;
    double final_rate = 0.1;
    double beta1 = 0.9;
    double beta2 = 0.98;
    double eps = 1e-9;
    double weight_decay = 0.01;  ///< of matrices; norms, biases and embeddings are left alone
    double clip = 1;             ///< largest global norm of the gradients; 0: any
    double label_smoothing = 0;
    double mask_share = 0.15;  ///< masked language model: tokens that are asked for
    /// What is computed with: f32 or bf16. Weights are kept and updated in f32 either way.
    DType dtype = DType::f32;
    bool recompute = false;
    std::uint64_t seed = 1;
    double spread = 0;                    ///< of fresh weights: RandomOptions::spread
    std::int64_t validate_every = 0;      ///< steps; 0: a tenth of all
    std::int64_t validation_batches = 8;  ///< of `batch` sequences
    std::int64_t save_every = 0;          ///< steps; 0: as validate_every
};

/// How wide the ids of a token file are, little-endian.
enum class TokenType : std::uint8_t { u16, u32 };

/// Where examples come from; exactly one of the first four.
struct DataConfig {
    std::string task = {};                  ///< a built-in one
    std::filesystem::path text = {};        ///< a text: windows of `tokens` tokens
    std::filesystem::path lines = {};       ///< JSON lines with "text", or "source" and "target"
    std::filesystem::path token_file = {};  ///< ids, end to end: windows of `tokens` tokens, read as they are needed
    TokenType token_type = TokenType::u16;  ///< of token_file
    std::filesystem::path tokenizer = {};   ///< tokenizer.json; absent: bytes
    /// Lines for a decoder: end to end, `batch` times `tokens` tokens a step without padding; no document sees another.
    /// One that is longer than `tokens`, or does not fit into the step, goes on as a sequence of its own.
    bool packed = false;
    std::filesystem::path validation = {};  ///< of the same form; absent: the last `validation_share`
    double validation_share = 0.1;
};

struct TrainConfig {
    ModelConfig model = {};
    DataConfig data = {};
    TrainOptions options = {};
};

/// A run's file: {"model": {...}, "data": {...}, "train": {...}}, every key known, what is missing as by default. The
/// text is not trusted; what is wrong is an Error that names the key. Paths are as given.
HEED_API TrainConfig read_train_config(std::string_view json);
HEED_API std::string write_train_config(const TrainConfig& config);
/// The "train" part alone.
HEED_API TrainOptions read_train_options(std::string_view json);

/// A small model and settings that learn a built-in task within a minute on two cores.
HEED_API TrainConfig task_config(std::string_view task);

/// Sets the kind of attention of every layer by one word: mha, gqa, mqa, mla, window, linear, infini, or hybrid (three
/// linear layers, then one softmax layer, and so on).
HEED_API void set_attention(ModelConfig& model, std::string_view kind);
HEED_API std::vector<std::string> attention_words();

/// The learning rate of a step, counted from 1.
HEED_API double learning_rate(const TrainOptions& options, std::int64_t d_model, std::int64_t step);

// ---- Data ----------------------------------------------------------------------------------------------------------

/// What one step, or one part of it, is computed from.
struct TrainBatch {
    Tensor input_ids{};        ///< i64 [B,T]
    Tensor attention_mask{};   ///< u8 [B,T]; absent: every token is there
    Tensor labels{};           ///< i64 [B,T], or [B,U] of an encoder-decoder; -100: not asked for
    std::int64_t targets = 0;  ///< labels that count; 0: counted
    Tensor cu_seqlens{};       ///< i64 [N+1]: N sequences end to end, B is 1; absent: a sequence a row
};

/// Batches by number: the same number gives the same batch.
class HEED_API TrainData {
public:
    virtual ~TrainData() = default;
    virtual std::int64_t vocab() const = 0;
    virtual TrainBatch batch(std::int64_t number) const = 0;
    virtual TrainBatch validation(std::int64_t number) const = 0;
    /// Text to the ids that a model of these data is asked with; null: the data are ids.
    virtual const Tokenizer* tokenizer() const { return nullptr; }
    /// Fills in what a fresh model has to know of them: vocabulary, padding, start and end.
    virtual void complete(ModelConfig& model) const { model.vocab = vocab(); }
    /// Bytes of text behind a token on average, for bits per byte; 0: not text.
    virtual double bytes_per_token() const { return 0; }
};
/// Opens and checks what a configuration names. Errors are FileErrors and Errors.
HEED_API std::unique_ptr<TrainData> open_data(const TrainConfig& config);

// ---- Training ------------------------------------------------------------------------------------------------------

struct StepReport {
    std::int64_t step = 0;  ///< counted from 1
    double loss = 0;        ///< without smoothing: mean negative log-likelihood of a target, in nats
    double gradient_norm = 0;
    double learning_rate = 0;
    std::int64_t tokens = 0;  ///< in the batch, padding left out
    bool skipped = false;     ///< gradients were not finite: nothing was changed
};

struct Score {
    double loss = 0;
    double token_accuracy = 0;  ///< most probable token right
    double exact = 0;           ///< sequences with every target right: what greedy decoding would write
    std::int64_t targets = 0;
    std::int64_t sequences = 0;
};

/// A model and its optimiser: steps on batches of one's own. The weights are the model's, f32 or rounded to the type
/// that is computed with. Of the options what speaks of data (batch, tokens, mask_share) and of when to look is not
/// read.
class HEED_API Learner {
public:
    Learner(Context& context, const Model& model, const TrainOptions& options);
    ~Learner();
    Learner(const Learner&) = delete;
    Learner& operator=(const Learner&) = delete;

    const Model& model() const;
    const TrainOptions& options() const;
    /// Steps done, skipped ones among them.
    std::int64_t steps() const;
    std::int64_t skipped() const;

    StepReport step(const TrainBatch& batch);

    /// Weights, moments and counts in one file, which replaces the old one whole or not at all.
    void save(const std::filesystem::path& file, std::string_view belongs_to = {}) const;
    /// Takes them up again. Error where the file belongs to something else.
    void resume(const std::filesystem::path& file, std::string_view belongs_to = {});
    /// The most bytes that activations took at once since the last call.
    std::size_t peak_bytes();

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// A learner with data.
class HEED_API Trainer {
public:
    /// A fresh model from the configuration and the seed.
    Trainer(Context& context, const TrainConfig& config);
    /// Goes on with the model of a folder (fine-tuning); its configuration replaces config.model.
    Trainer(Context& context, const TrainConfig& config, const Model& model);
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    const TrainConfig& config() const;
    const Model& model() const;
    const TrainData& data() const;
    /// Steps done, skipped ones among them.
    std::int64_t step() const;
    std::int64_t skipped() const;

    StepReport train_step();
    /// Over config.options.validation_batches, without dropout. Leaves the training as it was.
    Score validate() const;

    /// Everything that the next step depends on, in one file that replaces the old one whole or not at all.
    void save(const std::filesystem::path& file) const;
    /// Takes it up again. Error where the file belongs to another configuration.
    void resume(const std::filesystem::path& file);
    /// The most bytes that activations took at once since the last call.
    std::size_t peak_bytes();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// ---- A run in a folder ---------------------------------------------------------------------------------------------
//
//     run.json           the configuration
//     last.safetensors   everything to go on from
//     best/              the model with the lowest validation loss so far: config.json, model.safetensors
//     log.jsonl          a line a step, and one a validation

struct RunEvent {
    StepReport step{};
    const Score* validation = nullptr;  ///< after this step, where there was one
    bool best = false;                  ///< the best so far
    double seconds = 0;                 ///< since the run was started or resumed
    double tokens_per_second = 0;       ///< of training alone
};

struct RunOptions {
    bool resume = false;  ///< false: the folder must not hold a run
    /// After every step; false ends the run early, with everything saved.
    std::function<bool(const RunEvent&)> progress{};
};

struct RunResult {
    std::int64_t steps = 0, skipped = 0;
    double best_loss = 0;
    Score last{};  ///< the last validation of this call; absent (no targets) where there was none
    double tokens_per_second = 0;
    std::size_t peak_bytes = 0;  ///< of activations
};

/// Trains and keeps the folder up to date. Whatever ends it, a signal or the power, a later call with `resume` goes on
/// from the last saved step with the same losses.
HEED_API RunResult run_training(Trainer& trainer, const std::filesystem::path& folder, const RunOptions& options = {});

/// Loss of a model over batches of any data.
HEED_API Score score_batches(Context& context, const Model& model, const TrainData& data, std::int64_t batches,
                             DType dtype = DType::f32);

}  // namespace heed
