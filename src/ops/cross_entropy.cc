#include <heed/cross_entropy.h>
#include <heed/elementwise.h>
#include <heed/embedding.h>
#include <heed/tensor.h>

#include "base/dispatch.h"
#include "cpu/layers/layers.h"
#include "cuda/training.h"
#include "ops/host_copy.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/cross_entropy.h"
#include "reference/listed_rows.h"

#include <cmath>

namespace heed {
namespace {

constexpr double cross_entropy_operations = 40;

/// q of the target and of the others.
struct Smoothed {
    double target = 1, base = 0;
};

Smoothed smoothed(std::int64_t classes, const CrossEntropyOptions& o) {
    if (o.label_smoothing == 0) { return {}; }
    const auto count = static_cast<double>(classes);
    if (o.smoothing == Smoothing::uniform) {
        return {1 - o.label_smoothing + o.label_smoothing / count, o.label_smoothing / count};
    }
    return classes == 1 ? Smoothed{} : Smoothed{1 - o.label_smoothing, o.label_smoothing / (count - 1)};
}

void check_loss_options(const char* function, const CrossEntropyOptions& o) {
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1)) {
        refuse(function, "label_smoothing", "0 to 1", std::to_string(o.label_smoothing));
    }
    if (!(o.divisor >= 0 && std::isfinite(o.divisor))) {
        refuse(function, "divisor", "a finite number from 0 up", std::to_string(o.divisor));
    }
    check_finite(function, "dloss", o.dloss);
}

/// The targets of all rows, what they are divided by, and the losses of each.
struct Targets {
    std::vector<std::int64_t> ids;
    std::int64_t count = 0;
    double divisor = 1;
    std::vector<double> losses, nlls;

    Targets(const char* function, const View& targets, const Shape& rows, std::int64_t classes,
            const CrossEntropyOptions& o) {
        if (targets && !(targets.shape() == rows)) {
            refuse(function, "targets", to_string(rows), to_string(targets.shape()));
        }
        ids = checked_ids(function, "targets", targets, classes, &o.ignore);
        for (const std::int64_t id : ids) { count += id == o.ignore ? 0 : 1; }
        divisor = o.divisor > 0 ? o.divisor : std::max(1.0, static_cast<double>(count));
        losses.assign(ids.size(), 0);
        nlls.assign(ids.size(), 0);
    }

    CrossEntropy result() const { return {reference::sum(losses) / divisor, reference::sum(nlls) / divisor, count}; }
    void write_losses(const MutableView& to) const {
        if (to) { reference::put_all(losses, to); }
    }
};

void check_losses(const char* function, const MutableView& losses, const Shape& rows) {
    if (losses) { check_output(function, "losses", losses, rows, {DType::f32, DType::f64}); }
}

CrossEntropyProblem problem_of(const CrossEntropyOptions& o, std::int64_t classes, double divisor) {
    CrossEntropyProblem problem;
    problem.shape.columns = classes;
    problem.ignore = o.ignore;
    const Smoothed q = smoothed(classes, o);
    problem.base = q.base;
    problem.target = q.target;
    problem.gradient = o.dloss / divisor;
    return problem;
}

void cross_entropy_by_reference(detail::Place& place, const CrossEntropyProblem& p) {
    for_rows(*place.pool, p.shape, cross_entropy_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::cross_entropy(p, begin, end); });
}

std::span<const Kernel<CrossEntropyProblem>> cross_entropy_kernel_list() {
    static const auto list =
        kernel_list<CrossEntropyProblem>({cuda::cross_entropy_kernels(),
                                          cpu::cross_entropy_kernels(),
                                          {reference_kernel<CrossEntropyProblem>(cross_entropy_by_reference)}});
    return list;
}

void run_cross_entropy(Context& context, const char* function, const CrossEntropyProblem& problem) {
    if (problem.shape.rows > 0 && problem.shape.columns > 0) {
        run_forward(context, cross_entropy_kernel_list(), {function}, problem);
    }
}

/// Logits that exist at once: 64 MB of them in float32, and rows enough to keep the products busy.
constexpr std::int64_t logits_at_once = std::int64_t{1} << 24;
constexpr std::int64_t least_rows = 96;

struct Arguments {
    const View& hidden;
    const View& weight;
    const LinearCrossEntropyOptions& options;
    const LinearCrossEntropyGradients& gradients;
};

void check_linear_arguments(Caller function, const Arguments& a) {
    check_rows(function, {"hidden", a.hidden});
    check_rows(function, {"weight", a.weight});
    const std::int64_t inputs = a.hidden.extent(a.hidden.rank() - 1);
    if (a.weight.rank() != 2 || a.weight.extent(1) != inputs) {
        refuse(function, "weight", "[classes, " + std::to_string(inputs) + "], the columns of hidden",
               to_string(a.weight.shape()));
    }
    const Shape classes{a.weight.extent(0)};
    check_optional_input(function, {"bias", a.options.bias}, classes);
    check_optional_output(function, {"dhidden", a.gradients.dhidden}, a.hidden.shape());
    check_optional_output(function, {"dweight", a.gradients.dweight}, a.weight.shape());
    check_optional_output(function, {"dbias", a.gradients.dbias}, classes);
    check_losses(function, a.gradients.losses, without_last_axis(a.hidden.shape()));
    check_all_disjoint(function,
                       {{"dhidden", a.gradients.dhidden},
                        {"dweight", a.gradients.dweight},
                        {"dbias", a.gradients.dbias},
                        {"losses", a.gradients.losses}},
                       {{"hidden", a.hidden}, {"weight", a.weight}, {"bias", a.options.bias}});
    check_loss_options(function, a.options.loss);
    if (a.options.room) {
        check_output(function, "room", a.options.room, Shape{a.options.room.shape().elements()}, {DType::u8});
        if (a.options.room.stride(0) != 1 || reinterpret_cast<std::uintptr_t>(a.options.room.data()) % 8 != 0) {
            refuse(function, "room", "bytes side by side, aligned to 8", "others");
        }
        check_all_disjoint(function, {{"room", a.options.room}},
                           {{"hidden", a.hidden},
                            {"weight", a.weight},
                            {"bias", a.options.bias},
                            {"dhidden", a.gradients.dhidden},
                            {"dweight", a.gradients.dweight},
                            {"dbias", a.gradients.dbias},
                            {"losses", a.gradients.losses}});
    }
    if (!(a.options.softcap >= 0 && std::isfinite(a.options.softcap))) {
        refuse(function, "softcap", "a finite number from 0 up", std::to_string(a.options.softcap));
    }
}

/// What a chunk needs: tensors behind one another in one piece of memory.
struct ChunkShape {
    std::int64_t rows, inputs, classes;
    DType hidden, logits;
    bool narrow;  ///< products of bf16 with bf16 are twice as fast as mixed ones

    ChunkShape(const View& hidden_, const View& weight, std::int64_t most, bool wide)
        : inputs(weight.extent(1)),
          classes(weight.extent(0)),
          hidden(hidden_.dtype()),
          logits(wide ? DType::f64 : DType::f32),
          narrow(hidden_.dtype() == DType::bf16 && weight.dtype() == DType::bf16) {
        const std::int64_t fitting = logits_at_once / std::max<std::int64_t>(1, classes) / least_rows * least_rows;
        rows = std::min(std::max(fitting, least_rows), most);
    }

    static std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
    std::size_t bytes_of(DType dtype, std::int64_t columns) const {
        return rounded(static_cast<std::size_t>(rows * columns) * size_of(dtype));
    }
    std::size_t bytes() const {
        return bytes_of(hidden, inputs) + bytes_of(logits, classes) + (narrow ? bytes_of(DType::bf16, classes) : 0) +
               bytes_of(logits, inputs);
    }
};

/// Chunks of the rows that have a target: logits, loss, gradients.
class Chunks {
public:
    Chunks(Context& context, const Arguments& arguments, Targets& targets)
        : context_(context), a_(arguments), targets_(targets) {
        for (std::size_t n = 0; n < targets_.ids.size(); ++n) {
            if (targets_.ids[n] != a_.options.loss.ignore) { rows_.push_back(static_cast<std::int64_t>(n)); }
        }
        const bool wide = any_wide({a_.hidden, a_.weight, a_.options.bias});
        const ChunkShape shape(a_.hidden, a_.weight, static_cast<std::int64_t>(rows_.size()), wide);
        at_once_ = shape.rows;
        const MutableView& given = a_.options.room;
        if (!given || given.shape().elements() < static_cast<std::int64_t>(shape.bytes())) {
            own_ = Tensor::uninitialised(DType::u8, {static_cast<std::int64_t>(shape.bytes())}, context_.device());
        }
        auto* memory = static_cast<std::byte*>(own_ ? own_.data() : given.data());
        const auto take = [&](DType dtype, std::int64_t columns) {
            const MutableView view(dtype, memory, {shape.rows, columns}, context_.device());
            memory += shape.bytes_of(dtype, columns);
            return view;
        };
        hidden_ = take(shape.hidden, shape.inputs);
        logits_ = take(shape.logits, shape.classes);
        wants_gradient_ = a_.gradients.dhidden || a_.gradients.dweight || a_.gradients.dbias;
        if (!wants_gradient_) { return; }
        narrow_ = shape.narrow;
        if (narrow_) { dlogits_ = take(DType::bf16, shape.classes); }
        if (a_.gradients.dhidden) { dhidden_ = take(shape.logits, shape.inputs); }
    }

    void run() {
        if (a_.gradients.dhidden && (rows_.size() < targets_.ids.size() || !on_host(context_))) {
            fill(context_, a_.gradients.dhidden, 0);
        }
        if (rows_.empty() && !a_.gradients.accumulate) {
            if (a_.gradients.dweight) { fill(context_, a_.gradients.dweight, 0); }
            if (a_.gradients.dbias) { fill(context_, a_.gradients.dbias, 0); }
        }
        const auto total = static_cast<std::int64_t>(rows_.size());
        for (std::int64_t begin = 0; begin < total; begin += at_once_) {
            one(begin, std::min(at_once_, total - begin));
        }
    }

private:
    void one(std::int64_t begin, std::int64_t count) {
        const std::span<const std::int64_t> rows =
            std::span(rows_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
        take_rows(rows);
        const View hidden = hidden_.slice(0, 0, count);
        const MutableView logits = logits_.slice(0, 0, count);
        product(context_, hidden, a_.weight.permute({1, 0}), logits, {.bias = a_.options.bias});
        const MutableView dlogits = narrow_ ? dlogits_.slice(0, 0, count) : logits;
        losses(rows, logits, dlogits);
        if (!wants_gradient_) { return; }
        const bool before = a_.gradients.accumulate || begin > 0;
        if (a_.gradients.dweight) {
            product(context_, View(dlogits).permute({1, 0}), hidden, a_.gradients.dweight, {.accumulate = before});
        }
        if (a_.gradients.dbias) { sum_leading(context_, dlogits, a_.gradients.dbias, {.accumulate = before}); }
        if (a_.gradients.dhidden) {
            const MutableView dhidden = dhidden_.slice(0, 0, count);
            product(context_, dlogits, a_.weight, dhidden);
            put_rows(rows, dhidden);
        }
    }

    /// [rows, N] over the same memory, where the rows lie evenly.
    template <class AnyView>
    static AnyView as_table(const AnyView& x) {
        const std::int64_t columns = x.extent(x.rank() - 1);
        return AnyView(x.dtype(), x.data(), Shape{x.shape().elements() / columns, columns}, x.device());
    }

    /// hidden_ = rows of hidden.
    void take_rows(std::span<const std::int64_t> rows) {
        if (on_host(context_)) {
            return reference::gather(rows_of(a_.hidden), rows, a_.weight.extent(1), rows_of(hidden_));
        }
        const auto count = static_cast<std::int64_t>(rows.size());
        embedding(context_, View(rows.data(), {count}), as_table(a_.hidden), hidden_.slice(0, 0, count));
    }
    /// Rows of dhidden, where a GPU has zeros until then, = those of this chunk.
    void put_rows(std::span<const std::int64_t> rows, const View& from) {
        if (on_host(context_)) {
            return reference::scatter(rows_of(from), rows, a_.weight.extent(1), rows_of(a_.gradients.dhidden));
        }
        const auto count = static_cast<std::int64_t>(rows.size());
        embedding_backward(context_, View(rows.data(), {count}), from, as_table(a_.gradients.dhidden),
                           {.accumulate = true});
    }

    void losses(std::span<const std::int64_t> rows, const MutableView& logits, const MutableView& dlogits) {
        CrossEntropyProblem problem = problem_of(a_.options.loss, logits.extent(1), targets_.divisor);
        problem.shape.rows = static_cast<std::int64_t>(rows.size());
        problem.softcap = a_.options.softcap;
        problem.logits = rows_of(logits);
        if (wants_gradient_) { problem.dlogits = rows_of(dlogits); }
        std::vector<std::int64_t> ids;
        for (const std::int64_t row : rows) { ids.push_back(targets_.ids[static_cast<std::size_t>(row)]); }
        std::vector<double> losses(rows.size()), nlls(rows.size());
        problem.targets = ids.data();
        problem.losses = losses.data();
        problem.nlls = nlls.data();
        run_cross_entropy(context_, "linear_cross_entropy", problem);
        for (std::size_t n = 0; n < rows.size(); ++n) {
            targets_.losses[static_cast<std::size_t>(rows[n])] = losses[n];
            targets_.nlls[static_cast<std::size_t>(rows[n])] = nlls[n];
        }
    }

    Context& context_;
    const Arguments& a_;
    Targets& targets_;
    std::vector<std::int64_t> rows_;
    std::int64_t at_once_ = 0;
    bool narrow_ = false, wants_gradient_ = false;
    Tensor own_;
    MutableView hidden_, logits_, dlogits_, dhidden_;
};

}  // namespace

double least_loss(std::int64_t classes, const CrossEntropyOptions& options) {
    constexpr const char* function = "least_loss";
    check_loss_options(function, options);
    if (classes < 1) { refuse(function, "classes", "1 or more", std::to_string(classes)); }
    const Smoothed q = smoothed(classes, options);
    const auto term = [](double x) { return x > 0 ? -x * std::log(x) : 0; };
    return term(q.target) + static_cast<double>(classes - 1) * term(q.base);
}

CrossEntropy cross_entropy(Context& context, const View& logits, const View& targets,
                           const CrossEntropyOptions& options, const CrossEntropyOutputs& outputs) {
    const Caller function("cross_entropy", context);
    check_rows(function, {"logits", logits});
    const Shape rows = without_last_axis(logits.shape());
    const std::int64_t classes = logits.extent(logits.rank() - 1);
    check_optional_output(function, {"dlogits", outputs.dlogits}, logits.shape());
    check_losses(function, outputs.losses, rows);
    check_in_place(function, {"dlogits", outputs.dlogits}, {{"logits", logits}});
    check_all_disjoint(function, {{"dlogits", outputs.dlogits}, {"losses", outputs.losses}}, {{"targets", targets}});
    check_all_disjoint(function, {{"losses", outputs.losses}}, {{"logits", logits}});
    check_loss_options(function, options);
    Targets checked(function, targets, rows, classes, options);
    CrossEntropyProblem problem = problem_of(options, classes, checked.divisor);
    problem.shape.rows = rows.elements();
    problem.targets = checked.ids.data();
    problem.logits = rows_of(logits);
    problem.dlogits = rows_of(outputs.dlogits);
    problem.losses = checked.losses.data();
    problem.nlls = checked.nlls.data();
    run_cross_entropy(context, function, problem);
    checked.write_losses(outputs.losses);
    return checked.result();
}

std::size_t linear_cross_entropy_room(const View& hidden, const View& weight) {
    const std::int64_t rows = without_last_axis(hidden.shape()).elements();
    return ChunkShape(hidden, weight, rows, any_wide({hidden, weight})).bytes();
}

CrossEntropy linear_cross_entropy(Context& context, const View& hidden, const View& weight, const View& targets,
                                  const LinearCrossEntropyOptions& options,
                                  const LinearCrossEntropyGradients& gradients) {
    const Caller function("linear_cross_entropy", context);
    const Arguments arguments{hidden, weight, options, gradients};
    check_linear_arguments(function, arguments);
    for (const ArgumentView& x : {ArgumentView{"hidden", hidden}, ArgumentView{"dhidden", gradients.dhidden}}) {
        if (x.view && !on_host(context) && !all_contiguous({x.view})) {
            refuse(function, x.name, "row-major memory on a GPU", "strides " + to_string(x.view.strides()));
        }
    }
    Targets checked(function, targets, without_last_axis(hidden.shape()), weight.extent(0), options.loss);
    Chunks(context, arguments, checked).run();
    checked.write_losses(gradients.losses);
    return checked.result();
}

}  // namespace heed
