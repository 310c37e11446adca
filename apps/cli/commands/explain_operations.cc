#include "commands/explain_operations.h"

#include <array>
#include <span>

#include <fmt/format.h>
#include <heed/attention.h>
#include <heed/linear_attention.h>
#include <heed/matmul.h>
#include <heed/merge.h>
#include <heed/norm.h>
#include <heed/positions.h>
#include <heed/tensor.h>

#include "print/text.h"

namespace heed::cli {
namespace {

using Sizes = std::span<const std::int64_t>;

/// Memory that nobody reads or writes: calls on it are explained, not carried out.
Tensor blank(DType dtype, const Shape& shape) { return Tensor::uninitialised(dtype, shape); }

struct Qkv {
    Tensor q, k, v, out, lse;
    Qkv(Sizes n, DType dtype)
        : q(blank(dtype, {n[0], n[1], n[3], n[5]})),
          k(blank(dtype, {n[0], n[2], n[4], n[5]})),
          v(blank(dtype, {n[0], n[2], n[4], n[5]})),
          out(blank(dtype, q.shape())),
          lse(blank(DType::f32, {n[0], n[1], n[3]})) {}
};

void call_attend(Context& context, Sizes n, DType dtype) {
    Qkv x(n, dtype);
    attend(context, x.q, x.k, x.v, {.out = x.out, .lse = x.lse});
}
void call_attend_backward(Context& context, Sizes n, DType dtype) {
    Qkv x(n, dtype);
    Tensor dq = blank(dtype, x.q.shape()), dk = blank(dtype, x.k.shape()), dv = blank(dtype, x.v.shape());
    attend_backward(context, {.q = x.q, .k = x.k, .v = x.v, .out = x.out, .lse = x.lse, .dout = x.out},
                    {.dq = dq, .dk = dk, .dv = dv});
}
void call_linear_attend(Context& context, Sizes n, DType dtype) {
    Qkv x(n, dtype);
    linear_attend(context, x.q, x.k, x.v, x.out, {.causal = n[3] == n[4]});
}
void call_matmul(Context& context, Sizes n, DType dtype) {
    Tensor a = blank(dtype, {n[0], n[2]}), b = blank(dtype, {n[2], n[1]}), c = blank(dtype, {n[0], n[1]});
    matmul(context, a, b, c);
}
void call_rope(Context& context, Sizes n, DType dtype) {
    Tensor x = blank(dtype, {n[0], n[1], n[2], n[3]}), out = blank(dtype, x.shape());
    rope(context, x, out, rope_table({.size = n[3]}));
}
void call_merge(Context& context, Sizes n, DType dtype) {
    Tensor first = blank(dtype, {n[0], n[1], n[2], n[3]}), second = blank(dtype, first.shape());
    Tensor out = blank(dtype, first.shape()), lse = blank(DType::f32, {n[0], n[1], n[2]});
    const std::array<PartialResult, 2> parts = {PartialResult{first, lse}, PartialResult{second, lse}};
    merge(context, parts, out);
}
void call_layer_norm(Context& context, Sizes n, DType dtype) {
    Tensor x = blank(dtype, {n[0], n[1]}), out = blank(dtype, x.shape());
    layer_norm(context, x, out);
}
void call_rms_norm(Context& context, Sizes n, DType dtype) {
    Tensor x = blank(dtype, {n[0], n[1]}), out = blank(dtype, x.shape());
    rms_norm(context, x, out);
}

struct Operation {
    const char* name;
    const char* sizes;
    void (*call)(Context& context, Sizes sizes, DType dtype);
};

constexpr Operation operations[] = {
    {"attend", "B,H,G,T,S,D", call_attend},    {"attend_backward", "B,H,G,T,S,D", call_attend_backward},
    {"layer_norm", "ROWS,N", call_layer_norm}, {"linear_attend", "B,H,G,T,S,D", call_linear_attend},
    {"matmul", "M,N,K", call_matmul},          {"merge", "B,H,T,E", call_merge},
    {"rms_norm", "ROWS,N", call_rms_norm},     {"rope", "B,H,T,D", call_rope},
};

std::size_t count_of(const char* sizes) {
    std::size_t count = 1;
    for (const char* c = sizes; *c != '\0'; ++c) { count += *c == ',' ? 1 : 0; }
    return count;
}

}  // namespace

std::string operation_names() {
    std::string names;
    for (const Operation& operation : operations) {
        names += (names.empty() ? "" : ", ") + std::string(operation.name);
    }
    return names;
}

std::vector<Explanation> explain_operation(const OperationQuestion& question) {
    for (const Operation& operation : operations) {
        if (question.operation != operation.name) { continue; }
        constexpr std::int64_t most = std::int64_t{1} << 40;
        const std::vector<std::int64_t> sizes = parse_integers("--shape", question.shape, 1, most);
        if (sizes.size() != count_of(operation.sizes)) {
            throw UsageError(
                fmt::format("--shape: expected {} for {}, got '{}'", operation.sizes, operation.name, question.shape));
        }
        const DType dtype = parse_dtype("--dtype", question.dtype);
        Context context(1);
        if (!question.kernel.empty()) { context.set_kernel(question.kernel); }
        return explain(context, [&](Context& dry) { operation.call(dry, sizes, dtype); });
    }
    throw UsageError(fmt::format("expected one of {}, got '{}'", operation_names(), question.operation));
}

}  // namespace heed::cli
