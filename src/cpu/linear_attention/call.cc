#include "cpu/linear_attention/gated_call.h"

#include <cmath>
#include <span>

namespace heed::cpu {
namespace {

template <class AnyView>
Tensor4 tensor4(const AnyView& view) {
    Tensor4 t;
    if (!view) { return t; }
    // Kernels write only to what was given as writable.
    t.data = const_cast<char*>(static_cast<const char*>(static_cast<const void*>(view.data())));
    t.dtype = view.dtype();
    t.b = view.stride(0);
    t.h = view.stride(1);
    t.row = view.stride(2);
    t.column = view.rank() == 4 ? view.stride(3) : 0;
    return t;
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

std::int64_t LinearCall::keys_of(std::int64_t b) const { return problem->keys_of(b); }

std::int64_t LinearCall::queries_of(std::int64_t b) const { return problem->queries_of(b); }

LinearCall make_linear_call(const LinearAttentionProblem& p) {
    LinearCall call;
    call.problem = &p;
    call.batch = p.batch;
    call.heads = p.heads;
    call.kv_heads = p.kv_heads;
    call.states = p.states;
    call.readers = p.readers();
    call.sharers = p.sharers();
    call.queries = p.queries;
    call.keys = p.keys;
    call.head_size = p.head_size;
    call.feature_size = p.feature_size;
    call.value_size = p.value_size;
    constexpr std::int64_t fastest_chunk = 64;
    call.chunk = std::min(p.options.chunk > 0 ? p.options.chunk : fastest_chunk, most_chunk);
    call.q = tensor4(p.q);
    call.k = tensor4(p.k);
    call.v = tensor4(p.v);
    call.out = tensor4(p.out);
    call.dout = tensor4(p.dout);
    call.dq = tensor4(p.gradients.dq);
    call.dk = tensor4(p.gradients.dk);
    call.dv = tensor4(p.gradients.dv);
    call.initial_s = tensor4(p.initial.s);
    call.initial_z = tensor4(p.initial.z);
    call.final_s = tensor4(p.final.s);
    call.final_z = tensor4(p.final.z);
    call.dfinal_s = tensor4(p.dfinal.s);
    call.dfinal_z = tensor4(p.dfinal.z);
    call.dinitial_s = tensor4(p.gradients.dinitial.s);
    call.dinitial_z = tensor4(p.gradients.dinitial.z);
    call.feature = p.options.feature;
    call.causal = p.options.causal;
    call.normalise = p.options.normalise;
    call.scale = static_cast<float>(p.options.scale);
    call.epsilon = static_cast<float>(p.options.epsilon);
    call.least = static_cast<float>(p.least_denominator);
    call.ddecay = p.ddecay_parts;
    for (std::int64_t n = 0; n < p.states; ++n) { call.decays = call.decays || p.decay(n) != 1; }
    return call;
}

void fill_decay(const LinearCall& call, std::int64_t state, float* power, float* falling) {
    const double decay = call.problem->decay(state);
    double value = 1;
    for (std::int64_t n = 0; n <= call.chunk; ++n) {
        power[n] = static_cast<float>(value);
        if (n < call.chunk) { falling[call.chunk - 1 - n] = power[n]; }
        value *= decay;
    }
    std::fill_n(falling + call.chunk, most_lanes, 0.0F);
}

void fill_decay_slopes(const LinearCall& call, std::int64_t state, float* slope, float* falling) {
    const double decay = call.problem->decay(state);
    double power = 1;  // decay^(n-1)
    for (std::int64_t n = 0; n <= call.chunk; ++n) {
        slope[n] = n == 0 ? 0.0F : static_cast<float>(static_cast<double>(n) * power);
        if (n > 0) { power *= decay; }
        if (n < call.chunk) { falling[call.chunk - 1 - n] = slope[n]; }
    }
    std::fill_n(falling + call.chunk, most_lanes, 0.0F);
}

float decay_power(const LinearCall& call, std::int64_t state, std::int64_t exponent) {
    const double decay = call.problem->decay(state);
    double value = 1;
    for (std::int64_t n = 0; n < exponent; ++n) { value *= decay; }
    return static_cast<float>(value);
}

void map_by_function(const LinearCall& call, const float* x, float* y, double* space) {
    double* wide_y = space + call.head_size;
    std::copy(x, x + call.head_size, space);
    call.problem->options.feature_function.map(std::span<const double>(space, size(call.head_size)),
                                               std::span<double>(wide_y, size(call.feature_size)));
    for (std::int64_t n = 0; n < call.feature_size; ++n) { y[n] = static_cast<float>(wide_y[n]); }
}

void map_backward_by_function(const LinearCall& call, const float* x, const float* dy, float* dx, double* space) {
    double* wide_dy = space + call.head_size;
    double* wide_dx = wide_dy + call.feature_size;
    std::copy(x, x + call.head_size, space);
    std::copy(dy, dy + call.feature_size, wide_dy);
    call.problem->options.feature_function.backward(std::span<const double>(space, size(call.head_size)),
                                                    std::span<const double>(wide_dy, size(call.feature_size)),
                                                    std::span<double>(wide_dx, size(call.head_size)));
    for (std::int64_t n = 0; n < call.head_size; ++n) { dx[n] = static_cast<float>(wide_dx[n]); }
}

void clear_rows(const Tensor4& tensor, std::int64_t columns, std::int64_t b, std::int64_t h, std::int64_t begin,
                std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t c = 0; c < columns; ++c) {
            write_number(tensor.dtype, tensor.data, b * tensor.b + h * tensor.h + t * tensor.row + c * tensor.column,
                         0);
        }
    }
}

bool state_in_place(const LinearCall& call, std::int64_t lanes) {
    const Tensor4& from = call.initial_s;
    const Tensor4& to = call.final_s;
    return from.data != nullptr && from.data == to.data && from.dtype == DType::f32 && to.dtype == DType::f32 &&
           from.column == 1 && call.value_size % lanes == 0;
}

GatedCall make_gated_call(const LinearAttentionProblem& p) {
    GatedCall call{make_linear_call(p), {}, {}, {}, {}};
    constexpr std::int64_t few_tokens = 8;
    const bool few = !p.dout && (p.options.form == LinearForm::recurrent ||
                                 (p.options.form == LinearForm::automatic && p.keys <= few_tokens));
    call.chunk = few ? 1 : std::min({call.chunk, most_gated_chunk, std::max<std::int64_t>(p.keys, 1)});
    call.log_decay = tensor4(p.options.log_decay);
    call.beta = tensor4(p.options.beta);
    call.dlog_decay = tensor4(p.gradients.dlog_decay);
    call.dbeta = tensor4(p.gradients.dbeta);
    call.each_row = p.options.log_decay && p.options.log_decay.rank() == 4;
    call.delta = p.options.rule == UpdateRule::delta;
    return call;
}

GatedCall columns_of(const GatedCall& call, std::int64_t begin, std::int64_t count) {
    GatedCall part = call;
    part.value_size = count;
    for (Tensor4* tensor : {&part.v, &part.out, &part.initial_s, &part.final_s}) {
        if (tensor->data != nullptr) { tensor->data += begin * tensor->column * tensor->element_size; }
    }
    return part;
}

namespace {

std::int64_t gate_offset(const Tensor4& gate, std::int64_t b, std::int64_t n, std::int64_t t) {
    return b * gate.b + n * gate.h + t * gate.row;
}

}  // namespace

void fill_gates(const GatedCall& call, std::int64_t b, std::int64_t n, std::int64_t begin, std::int64_t count,
                float* decay, float* beta) {
    const Tensor4& g = call.log_decay;
    for (std::int64_t i = 0; i < count && !call.each_row; ++i) {
        decay[i] = static_cast<float>(g.data == nullptr
                                          ? call.problem->decay(n)
                                          : std::exp(read_number(g.dtype, g.data, gate_offset(g, b, n, begin + i))));
    }
    const Tensor4& w = call.beta;
    for (std::int64_t i = 0; i < count; ++i) {
        beta[i] = w.data == nullptr ? 1.0F
                                    : static_cast<float>(read_number(w.dtype, w.data, gate_offset(w, b, n, begin + i)));
    }
}

void put_gates(const Tensor4& to, std::int64_t b, std::int64_t n, std::int64_t begin, std::int64_t count,
               const float* values) {
    for (std::int64_t i = 0; i < count; ++i) {
        write_number(to.dtype, to.data, gate_offset(to, b, n, begin + i),
                     values == nullptr ? 0 : static_cast<double>(values[i]));
    }
}

}  // namespace heed::cpu
