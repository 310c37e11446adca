#include <heed/rotary.h>

#include "base/overlap.h"
#include "cpu/rope/rotate.h"
#include "cuda/composition.h"
#include "kernel/rotate_problem.h"
#include "ops/checks.h"
#include "ops/positions_checks.h"
#include "reference/rotate.h"

#include <cmath>

namespace heed {
namespace {

/// [rows,n] or [b,rows,n] as three axes.
View three_axes(const View& table) {
    if (table.rank() != 2) { return table; }
    return View(table.dtype(), table.data(), Shape{1, table.extent(0), table.extent(1)},
                Shape{0, table.stride(0), table.stride(1)}, table.device());
}

struct RotateNames {
    const char* input;
    const char* output;
};

void check_rotations(Caller function, RotateProblem& p, const Rotations& by) {
    const std::int64_t batch = p.x.extent(0), length = p.x.extent(2), most = p.x.extent(3) / 2;
    for (const auto& [name, table] : {std::pair{"cosine", &by.cosine}, std::pair{"sine", &by.sine}}) {
        if (!*table) { refuse(function, name, "a tensor", "none"); }
        check_dtype(function, name, *table, float_types);
        check_memory(function, name, *table);
        check_disjoint(function, "out", p.out, name, *table);
    }
    p.cosine = three_axes(by.cosine);
    p.sine = three_axes(by.sine);
    const View& c = p.cosine;
    const bool fits =
        c.rank() == 3 &&
        (by.positions ? by.cosine.rank() == 2 : c.extent(1) == length && (c.extent(0) == 1 || c.extent(0) == batch));
    if (!fits) {
        const std::string rows = std::to_string(length);
        refuse(function, "cosine",
               by.positions ? "[P,n] beside positions"
                            : "[" + rows + ",n] or [" + std::to_string(batch) + "," + rows + ",n]",
               to_string(by.cosine.shape()));
    }
    if (c.extent(2) < 1 || c.extent(2) > most) {
        refuse(function, "cosine", "1 to " + std::to_string(most) + " pairs", std::to_string(c.extent(2)));
    }
    if (!(by.sine.shape() == by.cosine.shape())) {
        refuse(function, "sine", to_string(by.cosine.shape()) + " as cosine", to_string(by.sine.shape()));
    }
    p.positions = checked_positions(function, "positions", by.positions, batch, length);
    for (std::int64_t b = 0; p.positions && b < p.positions.extent(0); ++b) {
        for (std::int64_t t = 0; t < length; ++t) {
            const View& places = p.positions;
            const std::int64_t at =
                read_integer(places.dtype(), places.data(), b * places.stride(0) + t * places.stride(1));
            if (at < 0 || at >= c.extent(1)) {
                refuse(function, "positions", "0 to " + std::to_string(c.extent(1) - 1), std::to_string(at));
            }
        }
    }
    check_disjoint(function, "out", p.out, "positions", by.positions);
    if (by.pairing != Pairing::interleaved && by.pairing != Pairing::halves) {
        refuse(function, "pairing", "interleaved or halves", std::to_string(static_cast<int>(by.pairing)));
    }
    p.pairing = by.pairing;
}

void run_rotation(Context& context, const char* name, RotateNames names, bool back, const View& x,
                  const MutableView& out, const Rotations& by) {
    const Caller function{name, context};
    check_rank4(function, names.input, x);
    check_dtype(function, names.input, x, float_types);
    check_output(function, names.output, out, x.shape(), {x.dtype(), DType::f32});
    RotateProblem problem;
    problem.in_place = same_memory(x, out);
    if (!problem.in_place && overlaps(x, out)) {
        refuse(function, names.output, std::string("the view ") + names.input + " itself or memory apart from it",
               "an overlap");
    }
    problem.x = x;
    problem.out = out;
    problem.back = back;
    check_rotations(function, problem, by);
    static const auto list =
        kernel_list<RotateProblem>({cuda::rotate_kernels(), {cpu::rotate_kernel(), reference::rotate_kernel()}});
    run_forward<Kernel<RotateProblem>>(context, list, {name}, problem);
}

/// [T,n] or [B,T,n] as [B,T,n].
MutableView table_rows(Caller function, const char* name, const MutableView& table, std::int64_t pairs) {
    if (!table) { refuse(function, name, "a tensor", "none"); }
    if ((table.rank() != 2 && table.rank() != 3) || table.extent(table.rank() - 1) != pairs) {
        refuse(function, name, "[T," + std::to_string(pairs) + "] or [B,T," + std::to_string(pairs) + "]",
               to_string(table.shape()));
    }
    check_output(function, name, table, table.shape(), {DType::f32, DType::f64});
    if (table.rank() == 3) { return table; }
    return MutableView(table.dtype(), table.data(), Shape{1, table.extent(0), pairs},
                       Shape{0, table.stride(0), table.stride(1)}, table.device());
}

void check_axes(Caller function, const std::vector<RotaryAxis>& axes, std::int64_t batch, std::int64_t length) {
    for (std::size_t n = 0; n < axes.size(); ++n) {
        const View& places = axes[n].positions;
        const std::string name = "axes[" + std::to_string(n) + "].positions";
        const bool fits = places && ((places.rank() == 1 && places.extent(0) == length) ||
                                     (places.rank() == 2 && places.extent(0) == batch && places.extent(1) == length));
        if (!fits) {
            refuse(function, name, to_string(Shape{length}) + " or " + to_string(Shape{batch, length}),
                   places ? to_string(places.shape()) : std::string("none"));
        }
        check_dtype(function, name.c_str(), places,
                    {DType::i64, DType::i32, DType::f32, DType::f64, DType::bf16, DType::f16});
        check_memory(function, name.c_str(), places);
    }
}

}  // namespace

void rotate(Context& context, const View& x, const MutableView& out, const Rotations& by) {
    run_rotation(context, "rotate", {"x", "out"}, false, x, out, by);
}

void rotate_backward(Context& context, const View& dout, const MutableView& dx, const Rotations& by) {
    run_rotation(context, "rotate_backward", {"dout", "dx"}, true, dout, dx, by);
}

void rotary_tables(Context& context, const MutableView& cosine, const MutableView& sine,
                   const std::vector<RotaryAxis>& axes, const std::optional<Xpos>& xpos) {
    const Caller function{"rotary_tables", context};
    if (axes.empty()) { refuse(function, "axes", "at least one", "none"); }
    std::int64_t pairs = 0;
    for (const RotaryAxis& axis : axes) { pairs += static_cast<std::int64_t>(axis.table.frequencies.size()); }
    const MutableView cosines = table_rows(function, "cosine", cosine, pairs);
    const MutableView sines = table_rows(function, "sine", sine, pairs);
    if (!(sine.shape() == cosine.shape())) {
        refuse(function, "sine", to_string(cosine.shape()) + " as cosine", to_string(sine.shape()));
    }
    check_disjoint(function, "sine", sine, "cosine", cosine);
    check_axes(function, axes, cosines.extent(0), cosines.extent(1));
    if (xpos && (!(xpos->gamma > 0) || !std::isfinite(xpos->gamma))) {
        refuse(function, "xpos.gamma", "a positive number", std::to_string(xpos->gamma));
    }
    if (xpos && (!(xpos->scale_base > 0) || !std::isfinite(xpos->scale_base) || !std::isfinite(xpos->centre))) {
        refuse(function, "xpos.scale_base", "a positive number", std::to_string(xpos->scale_base));
    }
    static const std::vector<Kernel<RotaryTablesProblem>> list = {reference::rotary_tables_kernel()};
    run_forward<Kernel<RotaryTablesProblem>>(context, list, {function}, {cosines, sines, axes, xpos});
}

}  // namespace heed
