#include "commands/commands.h"

#include <deque>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <heed/model.h>
#include <heed/safetensors.h>
#include <heed/search.h>
#include <CLI/CLI.hpp>

#include "commands/device.h"
#include "commands/generation.h"
#include "commands/options.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ForwardArguments {
    std::string model;
    std::string in;
    std::string out;
    std::string write = "logits";
    std::string kernel;
    std::string threads = "0", weights = "stored", device = "cpu";
};

struct BeamRequest {
    std::int64_t beams = 0;
    std::int64_t tokens = 0;
};

/// What --write names.
struct Request {
    bool logits = false, hidden = false, attention = false, loss = false, gradients = false;
    std::optional<std::int64_t> greedy;
    std::vector<BeamRequest> beams;
};

std::int64_t count_in(const std::string& word, const std::string& number) {
    constexpr std::int64_t most = 1 << 20;
    const auto found = parse_integers("--write " + word, number, 1, most);
    if (found.size() != 1) { throw UsageError("--write: expected one number in '" + word + "'"); }
    return found[0];
}

void read_word(const std::string& word, Request& request) {
    if (word == "logits") {
        request.logits = true;
    } else if (word == "hidden") {
        request.hidden = true;
    } else if (word == "attention") {
        request.attention = true;
    } else if (word == "loss") {
        request.loss = true;
    } else if (word == "grad") {
        request.gradients = true;
    } else if (word.starts_with("greedy=")) {
        request.greedy = count_in(word, word.substr(7));
    } else if (word.starts_with("beam=") && word.find('x') != std::string::npos) {
        const std::size_t times = word.find('x');
        request.beams.push_back({count_in(word, word.substr(5, times - 5)), count_in(word, word.substr(times + 1))});
    } else {
        throw UsageError("--write: expected logits, hidden, attention, loss, grad, greedy=N or beam=KxN, got '" + word +
                         "'");
    }
}

Request read_request(const std::string& list) {
    Request request;
    std::size_t begin = 0;
    while (begin <= list.size()) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        read_word(list.substr(begin, end - begin), request);
        begin = end + 1;
    }
    return request;
}

/// The tensors of the file that a pass takes, with their memory.
struct FileInputs {
    Tensor input_ids, attention_mask, position_ids, token_type_ids, decoder_input_ids, decoder_attention_mask, labels;

    explicit FileInputs(const SafetensorsFile& file, const std::string& path) {
        for (const auto& [name, target] : {std::pair{"input_ids", &input_ids},
                                           {"attention_mask", &attention_mask},
                                           {"position_ids", &position_ids},
                                           {"token_type_ids", &token_type_ids},
                                           {"decoder_input_ids", &decoder_input_ids},
                                           {"decoder_attention_mask", &decoder_attention_mask},
                                           {"labels", &labels}}) {
            if (file.contains(name)) { *target = file.tensor(name); }
        }
        if (!input_ids || input_ids.shape().rank() != 2 || input_ids.elements() == 0) {
            throw UsageError(path + ": expected a tensor input_ids [batch, tokens], got " +
                             (input_ids ? compact(input_ids.shape()) : "none"));
        }
    }

    static View seen(const Tensor& tensor) { return tensor ? tensor.view() : View(); }
    ForwardInputs all() const {
        return {.input_ids = input_ids,
                .attention_mask = seen(attention_mask),
                .position_ids = seen(position_ids),
                .token_type_ids = seen(token_type_ids),
                .decoder_input_ids = seen(decoder_input_ids),
                .decoder_attention_mask = seen(decoder_attention_mask)};
    }
    /// The first row alone.
    ForwardInputs first() const {
        const auto row = [](const Tensor& tensor) -> View {
            const bool rows = tensor && tensor.shape().rank() == 2 && tensor.shape()[0] > 0;
            return rows ? tensor.view().slice(0, 0, 1) : seen(tensor);
        };
        return {.input_ids = row(input_ids),
                .attention_mask = row(attention_mask),
                .position_ids = row(position_ids),
                .token_type_ids = row(token_type_ids),
                .decoder_input_ids = row(decoder_input_ids),
                .decoder_attention_mask = row(decoder_attention_mask)};
    }
};

Tensor searched(Context& context, const Model& model, const ForwardInputs& row, const BeamRequest& request,
                const std::string& kernel) {
    SearchOptions options;
    options.max_new_tokens = options.min_new_tokens = request.tokens;
    options.num_beams = request.beams;
    options.early_stopping = EarlyStopping::yes;
    return search_rows(context, model, row.input_ids, row.attention_mask, options, kernel);
}

/// Loss of the first row, and gradients of all parameters.
Tensor loss_of(Context& context, const Model& model, const FileInputs& inputs, const std::string& kernel,
               bool gradients) {
    ForwardInputs row = inputs.first();
    View labels = row.input_ids;
    if (inputs.labels) {
        labels = inputs.labels.view().slice(0, 0, 1);
    } else if (model.config().kind == ModelKind::encoder_decoder) {
        labels = row.decoder_input_ids;
        row.decoder_input_ids = View();  // made from the labels, shifted
    }
    Tape tape(context, {.record = gradients});
    LossOptions options;
    options.forward.kernel = kernel;
    const Value loss = model.loss(tape, row, labels, options);
    if (gradients) { tape.backward(loss); }
    context.synchronise();
    return Tensor::copy_of(loss).to(Device{});
}

void run_forward(const ForwardArguments& arguments) {
    const Request request = read_request(arguments.write);
    const std::unique_ptr<Context> where =
        context_on(arguments.device, static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    Context& context = *where;
    const Model model =
        Model::load(arguments.model, {.weights = weight_storage(arguments.weights), .device = context.device()});
    const SafetensorsFile file = SafetensorsFile::open(arguments.in);
    const FileInputs inputs(file, arguments.in);

    std::vector<NamedView> written;
    ForwardResult result;
    std::deque<Tensor> kept;
    if (request.logits || request.hidden || request.attention) {
        result = model.forward(context, inputs.all(),
                               {.logits = request.logits,
                                .hidden = request.hidden,
                                .attention = request.attention,
                                .kernel = arguments.kernel});
        written = result.named();
    }
    if (request.loss || request.gradients) {
        kept.push_back(loss_of(context, model, inputs, arguments.kernel, request.gradients));
        if (request.loss) { written.push_back({"loss", kept.back().view()}); }
        for (const Parameter& parameter : model.parameters().list()) {
            if (request.gradients && parameter.gradient) {
                kept.push_back(parameter.gradient.to(Device{}));
                written.push_back({"grad." + parameter.name, kept.back().view()});
            }
        }
    }
    if (request.greedy) {
        kept.push_back(searched(context, model, inputs.first(), {1, *request.greedy}, arguments.kernel));
        written.push_back({"greedy", kept.back().view()});
    }
    for (const BeamRequest& beam : request.beams) {
        kept.push_back(searched(context, model, inputs.first(), beam, arguments.kernel));
        written.push_back({fmt::format("beam{}", beam.beams), kept.back().view()});
    }
    write_safetensors(arguments.out, written);
    for (const std::string& name : model.unused_tensors()) {
        fmt::print(stderr, "heed forward: {}: tensor not used by the model\n", printable(name));
    }
}

}  // namespace
}  // namespace heed::cli

void add_forward(CLI::App& app) {
    using namespace heed::cli;
    auto arguments = std::make_shared<ForwardArguments>();
    CLI::App* command = app.add_subcommand("forward", "Run a model on token ids from a file; write what it computes");
    command->add_option("MODEL", arguments->model, "Folder with config.json and model.safetensors (or its shards)")
        ->type_name("FOLDER")
        ->required();
    command->add_option("IN", arguments->in, "Safetensors file with input_ids, and more where it applies: see below")
        ->type_name("FILE")
        ->required();
    command->add_option("--out", arguments->out, "Safetensors file to write")->type_name("FILE")->required();
    command->add_option("--write", arguments->write, "What to write, separated by commas (default logits): see below")
        ->type_name("LIST");
    command->add_option("--kernel", arguments->kernel, "Attention kernel by name, such as reference")
        ->type_name("NAME");
    heed::cli::add_weights_option(*command, arguments->weights);
    add_device_option(*command, arguments->device);
    command->add_option("--threads", arguments->threads, "Threads (default: every core)")->type_name("N");
    command->footer(
        "Examples:\n"
        "  heed forward MODEL in.safetensors --out out.safetensors\n"
        "  heed forward MODEL in.safetensors --out out.safetensors --write logits,attention,greedy=16\n"
        "IN may hold attention_mask, position_ids, token_type_ids, decoder_input_ids and labels beside input_ids.\n"
        "LIST: logits, hidden, attention, loss, grad, greedy=N (N new tokens of the first row), beam=KxN (K beams).");
    command->callback([arguments] { run_forward(*arguments); });
}
