#include "conformance/run.h"

#include "base/dispatch.h"
#include "support/sample.h"

#include <algorithm>
#include <cstdlib>

namespace heed::conformance {
namespace {

Tensor wide(const std::vector<double>& values, const Shape& shape) {
    Tensor tensor(DType::f64, shape);
    std::copy(values.begin(), values.end(), tensor.as<double>());
    return tensor;
}

std::vector<double> numbers_of(const Tensor& tensor) {
    const double* begin = tensor.as<double>();
    return begin == nullptr ? std::vector<double>() : std::vector<double>(begin, begin + tensor.elements());
}

int environment(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

}  // namespace

Outputs::Outputs(const Problem& p) {
    out = Placed(p.out_dtype, {p.B, p.H, p.T, p.E}, p.layout(1));
    lse = Placed(p.lse_dtype, {p.B, p.H, p.T}, p.layout(2));
    dq = Placed(p.out_dtype, {p.B, p.H, p.T, p.D}, p.layout(3));
    dk = Placed(p.out_dtype, {p.B, p.G, p.S, p.D}, p.layout(4));
    dv = Placed(p.out_dtype, {p.B, p.G, p.S, p.E}, p.layout(5));
    if (p.options.bias) { dbias = Placed(p.lse_dtype, p.options.bias.shape(), p.layout(0)); }
    if (p.options.sinks) { dsinks = Placed(p.lse_dtype, {p.H}, p.layout(1)); }
    if (p.options.alibi_slopes) { dslopes = Placed(p.lse_dtype, p.options.alibi_slopes.shape(), p.layout(2)); }
}

AttentionGradients Outputs::gradients() {
    AttentionGradients g{.dq = dq.mutable_view(), .dk = dk.mutable_view(), .dv = dv.mutable_view()};
    if (dbias.view()) { g.dbias = dbias.mutable_view(); }
    if (dsinks.view()) { g.dsinks = dsinks.mutable_view(); }
    if (dslopes.view()) { g.dalibi_slopes = dslopes.mutable_view(); }
    return g;
}

Results Outputs::results() const {
    if (forward_only()) { return {.out = out.numbers(), .lse = lse.numbers()}; }
    return {.out = out.numbers(),
            .lse = lse.numbers(),
            .dq = dq.numbers(),
            .dk = dk.numbers(),
            .dv = dv.numbers(),
            .dbias = dbias.numbers(),
            .dsinks = dsinks.numbers(),
            .dslopes = dslopes.numbers()};
}

const char* Outputs::written_around() const {
    const Placed* all[] = {&out, &lse, &dq, &dk, &dv, &dbias, &dsinks, &dslopes};
    for (int n = 0; n < Results::count; ++n) {
        if (!all[n]->surroundings_untouched()) { return Results::names[n]; }
    }
    return nullptr;
}

std::unique_ptr<Outputs> run(Context& context, const Problem& p, const std::string& kernel) {
    if (kernel.starts_with("cuda")) { return run_on_gpu(p, kernel); }
    auto outputs = std::make_unique<Outputs>(p);
    AttentionOptions options = p.options;
    options.kernel = kernel;
    attend(context, p.q.view(), p.k.view(), p.v.view(),
           {.out = outputs->out.mutable_view(), .lse = outputs->lse.mutable_view()}, options);
    if (!forward_only()) {
        // "cpu-avx2/decode" has no way back; its family has.
        options.kernel = kernel.substr(0, kernel.find('/'));
        attend_backward(context,
                        {.q = p.q.view(),
                         .k = p.k.view(),
                         .v = p.v.view(),
                         .out = outputs->out.view(),
                         .lse = outputs->lse.view(),
                         .dout = p.dout.view(),
                         .dlse = p.dlse.view()},
                        outputs->gradients(), options);
        options.kernel = kernel;
    }
    if (out_without_lse(p)) {
        attend(context, p.q.view(), p.k.view(), p.v.view(), outputs->out.mutable_view(), options);
    }
    return outputs;
}

bool out_without_lse(const Problem& p) { return p.c.number % 2 == 1; }

Results oracle(Context& context, const Problem& p) {
    const Tensor q = wide(p.clean_q, {p.B, p.H, p.T, p.D});
    const Tensor k = wide(p.clean_k, {p.B, p.G, p.S, p.D});
    const Tensor v = wide(p.clean_v, {p.B, p.G, p.S, p.E});
    const Tensor dout = wide(p.clean_dout, {p.B, p.H, p.T, p.E});
    Tensor dlse;
    if (!p.clean_dlse.empty()) { dlse = wide(p.clean_dlse, {p.B, p.H, p.T}); }
    Tensor out(DType::f64, {p.B, p.H, p.T, p.E});
    Tensor lse(DType::f64, {p.B, p.H, p.T});
    Tensor dq(DType::f64, q.shape());
    Tensor dk(DType::f64, k.shape());
    Tensor dv(DType::f64, v.shape());
    Tensor dbias;
    Tensor dsinks;
    Tensor dslopes;
    AttentionGradients gradients{.dq = dq.view(), .dk = dk.view(), .dv = dv.view()};
    const auto on_request = [](Tensor& tensor, MutableView& view, const View& option) {
        if (!option) { return; }
        tensor = Tensor(DType::f64, option.shape());
        view = tensor.view();
    };
    on_request(dbias, gradients.dbias, p.options.bias);
    on_request(dsinks, gradients.dsinks, p.options.sinks);
    on_request(dslopes, gradients.dalibi_slopes, p.options.alibi_slopes);
    AttentionOptions options = p.options;
    options.kernel = "reference";
    attend(context, q, k, v, {.out = out, .lse = lse}, options);
    attend_backward(context,
                    {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse ? View(dlse) : View()},
                    gradients, options);
    return {.out = numbers_of(out),
            .lse = numbers_of(lse),
            .dq = numbers_of(dq),
            .dk = numbers_of(dk),
            .dv = numbers_of(dv),
            .dbias = numbers_of(dbias),
            .dsinks = numbers_of(dsinks),
            .dslopes = numbers_of(dslopes)};
}

std::vector<std::string> kernels_to_test(bool on_gpu) {
    const char* text = std::getenv("HEED_CONFORMANCE_KERNELS");
    const std::string chosen = text == nullptr ? "" : "," + std::string(text) + ",";
    std::vector<std::string> names;
    const Explanation explanation = explain(AttentionShape{}, {.kernel = "reference"});
    for (const KernelVerdict& verdict : explanation.verdicts) {
        const bool asked_for = chosen.empty() || chosen.find("," + verdict.kernel + ",") != std::string::npos;
        // Rows for some problems only are asked again about each.
        const bool some = verdict.kernel.find('/') != std::string::npos;
        const std::string family = verdict.kernel.substr(0, verdict.kernel.find('/'));
        const auto& all = explanation.verdicts;
        const bool runs =
            std::any_of(all.begin(), all.end(), [&](const auto& v) { return v.kernel == family && v.fits; });
        const bool fits =
            on_gpu ? verdict.kernel.starts_with("cuda") && devices().size() > 1 : (some ? runs : verdict.fits);
        if (fits && asked_for) { names.push_back(verdict.kernel); }
    }
    return names;
}

bool forward_only() {
    const char* text = std::getenv("HEED_CONFORMANCE_PASS");
    return text != nullptr && std::string(text) == "forward";
}

Fitting::Fitting(const Problem& problem) {
    AttentionOptions options = problem.options;
    options.kernel = "reference";
    Context context(1);
    Outputs outputs(problem);
    const std::vector<Explanation> explained = explain(context, [&](Context& dry) {
        attend(dry, problem.q.view(), problem.k.view(), problem.v.view(),
               {.out = outputs.out.mutable_view(), .lse = outputs.lse.mutable_view()}, options);
    });
    verdicts_ = explained.at(0).verdicts;
}

bool Fitting::operator()(const std::string& kernel) const {
    if (kernel.starts_with("cuda")) { return true; }  // run() finds out
    // What a row for some problems only takes, the row of its family computes in the same way: once is enough.
    bool taken = false;
    for (const KernelVerdict& verdict : verdicts_) {
        if (verdict.kernel == kernel) { return verdict.fits && !taken; }
        taken = taken || (verdict.fits && verdict.kernel.starts_with(kernel + "/"));
    }
    return false;
}

bool fits(const Problem& problem, const std::string& kernel) { return Fitting(problem)(kernel); }

std::vector<Case> cases_to_test(int every, int first) {
    const std::vector<Case>& all = all_cases();
    const int one = environment("HEED_CASE", -1);
    const int stride = testing::test_stride();
    std::vector<Case> chosen;
    for (int n = first; n < static_cast<int>(all.size()); ++n) {
        if (one >= 0 ? n == one : (n - first) % (every * stride) == 0) {
            chosen.push_back(all[static_cast<std::size_t>(n)]);
        }
    }
    return chosen;
}

}  // namespace heed::conformance
