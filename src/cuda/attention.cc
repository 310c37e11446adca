#include "cuda/attention.h"

#include "cuda/attention_any.h"
#include "cuda/attention_lower.h"
#include "cuda/sm90/backward.h"
#include "cuda/sm90/decode.h"
#include "cuda/sm90/forward.h"
#include "cuda/sm90/general.h"

#include <string>

namespace heed::cuda {
namespace {

// ---- cuda-any ------------------------------------------------------------------------------------------------------

void any_forward(detail::Place& place, const AttentionProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    lowered.queue();
    launch_attention(queue.stream(), lowered.call, lowered.wide);
    check_launch("cuda-any");
}

void any_backward(detail::Place& place, const AttentionProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    AttentionCall& call = lowered.call;
    const std::size_t number = lowered.wide ? sizeof(double) : sizeof(float);
    const auto rows = static_cast<std::size_t>(call.entries * call.heads * call.queries);
    call.row_pitch = call.queries;
    lowered.need(&call.delta, rows * number);
    if (call.dsinks.data != nullptr) { lowered.need(&call.row_dsink, rows * number); }
    if (call.dslopes.data != nullptr) { lowered.need(&call.row_dslope, rows * number); }
    // Sums in double deserve an output and a denominator in double.
    const bool narrow = lowered.wide && (call.out.dtype != DType::f64 || call.lse.dtype != DType::f64);
    if (narrow) {
        const std::int64_t tensor_rows = call.batch * call.heads * call.queries;
        const auto row_major = [&](Tensor4& x, std::int64_t columns) {
            x = {.data = nullptr,
                 .dtype = DType::f64,
                 .stride = {call.heads * call.queries * columns, call.queries * columns, columns, 1}};
            lowered.need(&x.data, static_cast<std::size_t>(tensor_rows * columns) * sizeof(double));
        };
        row_major(call.out, call.value_size);
        row_major(call.lse, 1);
    }
    lowered.queue();
    if (narrow) { launch_attention(queue.stream(), call, true); }
    launch_clear_gradients(queue.stream(), call);
    launch_attention_deltas(queue.stream(), call, lowered.wide);
    launch_attention_sweeps(queue.stream(), call, lowered.wide);
    check_launch("cuda-any");
}

// ---- cuda-sm90 -----------------------------------------------------------------------------------------------------

/// The copy engine reads rows in units of 16 bytes from addresses that are multiples of 16.
bool copies_well(const View& x) {
    if (!x) { return true; }
    if (x.stride(3) != 1 && x.extent(3) > 1) { return false; }
    const auto unit = static_cast<std::int64_t>(16 / size_of(x.dtype()));
    for (int axis = 0; axis < 3; ++axis) {
        if (x.extent(axis) > 1 && (x.stride(axis) % unit != 0 || x.stride(axis) <= 0)) { return false; }
    }
    return reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0;
}

/// Tensors that the kernels for Hopper cannot take, whatever the options.
const char* tensors_decline(const AttentionProblem& p) {
    constexpr std::int64_t many = std::int64_t{1} << 30;
    if (p.q.dtype() != DType::bf16 && p.q.dtype() != DType::f16) { return "element type is neither bf16 nor f16"; }
    if (p.head_size != p.value_size || (p.head_size != 64 && p.head_size != 128 && p.head_size != 256)) {
        return "head size is not 64, 128 or 256";
    }
    if (p.queries >= many || p.keys >= many || p.batch * p.heads * (p.queries / 64 + 1) >= many) { return "too large"; }
    if (!copies_well(p.q) || !copies_well(p.k) || !copies_well(p.v) || !copies_well(p.out)) {
        return "rows are not multiples of 16 bytes from one another";
    }
    return nullptr;
}

/// Options that the kernels for bands do not have.
const char* options_decline(const AttentionProblem& p) {
    const AttentionOptions& o = p.options;
    if (o.allow || o.bias || o.alibi_slopes || o.sinks) { return "allow, bias, slopes or sinks"; }
    if (o.softcap != 0) { return "a soft-cap"; }
    if (o.dropout.keep) { return "dropout by a given mask"; }
    if (p.drops() && p.head_size == 256) { return "dropout at head size 256"; }
    if (p.sparse) { return "a pattern that is not a band"; }
    if (o.query_positions || o.key_positions) { return "explicit positions"; }
    if (!(p.scale > 0)) { return "a scale that is not positive"; }
    return nullptr;
}

const char* sm90_declines(const AttentionProblem& p) {
    if (p.pages != nullptr) { return "pages of a cache"; }
    if (const char* reason = tensors_decline(p)) { return reason; }
    return options_decline(p);
}

sm90::ForwardPlan plan_of(CudaQueue& queue) {
    return {.multiprocessors = queue.multiprocessors(), .counter = queue.counters(), .memo = &queue.memo()};
}

void sm90_forward(detail::Place& place, const AttentionProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    lowered.queue();
    const sm90::ForwardPlan plan = plan_of(queue);
    if (!sm90::launch_forward(queue.stream(), lowered.call, plan)) {
        launch_attention(queue.stream(), lowered.call, lowered.wide);
    }
    check_launch("cuda-sm90");
}

const char* general_declines(const AttentionProblem& p) {
    if (p.pages != nullptr) { return "pages of a cache"; }
    if (const char* reason = tensors_decline(p)) { return reason; }
    const std::int64_t squares = (p.queries / 64 + 1) * (p.keys / 64 + 1) * p.batch * p.heads;
    return squares >= std::int64_t{1} << 31 ? "too large" : nullptr;
}

void general_forward(detail::Place& place, const AttentionProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    sm90::Squares squares = sm90::squares_of(lowered.call);
    if (squares.bytes() > 0) {
        lowered.need(reinterpret_cast<void**>(&squares.flags), static_cast<std::size_t>(squares.bytes()));
    }
    lowered.queue();
    const sm90::ForwardPlan plan = plan_of(queue);
    if (!sm90::launch_general_forward(queue.stream(), lowered.call, plan, squares)) {
        launch_attention(queue.stream(), lowered.call, lowered.wide);
    }
    check_launch("cuda-sm90/general");
}

/// Pages whose rows are as tensors have them, and one query an entry.
const char* pages_decline(const AttentionProblem& p) {
    const KvPages& pages = *p.pages;
    const CacheStorage same = p.q.dtype() == DType::bf16 ? CacheStorage::bf16 : CacheStorage::f16;
    for (const KvRows* rows : {&pages.k, &pages.v}) {
        if (rows->storage != same) { return "pages of another type than the queries"; }
        if (rows->row_bytes % 16 != 0 || rows->head_bytes % 16 != 0 ||
            reinterpret_cast<std::uintptr_t>(rows->data) % 16 != 0) {
            return "rows are not multiples of 16 bytes from one another";
        }
        // Rows are counted over the whole pool, in 32 bits.
        if (rows->page_bytes != pages.page_size * rows->row_bytes) { return "pages are not one behind the other"; }
        if (rows->head_bytes / rows->row_bytes >= std::int64_t{1} << 31) { return "too large"; }
    }
    for (std::int64_t b = 0; b < p.batch; ++b) {
        const Sequence s = p.sequence(b);
        if (s.rows > 1) { return "more than one query a sequence"; }
        if (s.keys > std::int64_t{1} << 21) { return "too many keys"; }
    }
    return nullptr;
}

const char* decode_declines(const AttentionProblem& p) {
    if (const char* reason = tensors_decline(p)) { return reason; }
    if (const char* reason = options_decline(p)) { return reason; }
    if (p.head_size == 256) { return "head size is not 64 or 128"; }
    if (p.drops()) { return "dropout"; }
    if (p.pages != nullptr) {
        if (const char* reason = pages_decline(p)) { return reason; }
    } else {
        if (p.queries != 1 || p.packed) { return "more than one query a sequence"; }
        if (p.keys > std::int64_t{1} << 21) { return "too many keys"; }
    }
    const std::int64_t blocks = p.batch * p.kv_heads * ((p.group() + 15) / 16);
    if (blocks > CudaQueue::counters_count || p.batch > 65535 || p.heads > 65535) { return "too many sequences"; }
    return nullptr;
}

void decode_forward(detail::Place& place, const AttentionProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    sm90::DecodeScratch scratch{.parts = nullptr, .arrivals = queue.counters()};
    lowered.need(reinterpret_cast<void**>(&scratch.parts),
                 static_cast<std::size_t>(sm90::decode_parts(lowered.call)) * sizeof(float));
    lowered.queue();
    sm90::launch_decode(queue.stream(), lowered.call, scratch, queue.memo());
    check_launch("cuda-sm90/decode");
}

/// What the forward pass takes, with gradients that can be written two numbers at a time.
bool sm90_takes_gradients(const AttentionProblem& p) {
    const AttentionGradients& g = p.gradients;
    return p.dout.dtype() == p.q.dtype() && copies_well(p.dout) && copies_well(p.forward_out) && copies_well(g.dq) &&
           copies_well(g.dk) && copies_well(g.dv);
}

/// Memory of a backward pass.
void need_scratch(LoweredAttention& lowered, sm90::BackwardScratch& scratch) {
    AttentionCall& call = lowered.call;
    const std::int64_t planes = call.entries * call.heads, kv_planes = call.entries * call.kv_heads;
    call.row_pitch = sm90::BackwardScratch::padded(call.queries);
    call.query_flags = call.row_pitch / 64;
    call.key_flags = sm90::BackwardScratch::padded(call.keys) / 64;
    const auto need = [&](auto*& pointer, std::int64_t elements) {
        lowered.need(reinterpret_cast<void**>(&pointer), static_cast<std::size_t>(elements) * sizeof(*pointer));
    };
    need(scratch.lse, planes * call.row_pitch);
    need(scratch.delta, planes * call.row_pitch);
    need(scratch.queries_flag, planes * call.query_flags);
    need(scratch.keys_flag, kv_planes * call.key_flags);
    need(scratch.spoilt, 1);
}

/// What a query may not see can have spoilt rows whose own numbers are finite: those again, one pair at a time.
void repair_gradients(CudaQueue& queue, AttentionCall& call, const sm90::BackwardScratch& scratch) {
    call.delta = scratch.delta;
    call.spoilt = scratch.spoilt;
    call.queries_flag = scratch.queries_flag;
    call.keys_flag = scratch.keys_flag;
    launch_attention_gradients(queue.stream(), call);
}

const char* const not_described = ": the driver does not describe these tensors to the copy engine";

void sm90_backward(detail::Place& place, const AttentionProblem& problem) {
    if (!sm90_takes_gradients(problem)) { return any_backward(place, problem); }
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    AttentionCall& call = lowered.call;
    sm90::BackwardScratch scratch;
    need_scratch(lowered, scratch);
    lowered.queue();
    launch_clear_gradients(queue.stream(), call);
    const sm90::ForwardPlan plan = plan_of(queue);
    if (!sm90::launch_backward(queue.stream(), call, scratch, plan)) {
        throw DeviceError(std::string("cuda-sm90") + not_described);
    }
    if (call.left >= 0 || call.right >= 0 || call.packed || call.key_lengths.data != nullptr ||
        call.query_lengths.data != nullptr) {
        repair_gradients(queue, call, scratch);
    }
    check_launch("cuda-sm90");
}

void general_backward(detail::Place& place, const AttentionProblem& problem) {
    if (problem.head_size == 256 || !sm90_takes_gradients(problem)) { return any_backward(place, problem); }
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LoweredAttention lowered(queue, problem);
    AttentionCall& call = lowered.call;
    sm90::BackwardScratch scratch;
    need_scratch(lowered, scratch);
    const auto rows = static_cast<std::size_t>(call.entries * call.heads * call.row_pitch) * sizeof(float);
    if (call.dsinks.data != nullptr) { lowered.need(&call.row_dsink, rows); }
    if (call.dslopes.data != nullptr) { lowered.need(&call.row_dslope, rows); }
    sm90::Squares squares = sm90::squares_of(call);
    if (squares.bytes() > 0) {
        lowered.need(reinterpret_cast<void**>(&squares.flags), static_cast<std::size_t>(squares.bytes()));
    }
    lowered.queue();
    launch_clear_gradients(queue.stream(), call);
    const sm90::ForwardPlan plan = plan_of(queue);
    if (!sm90::launch_general_backward(queue.stream(), call, scratch, plan, squares)) {
        throw DeviceError(std::string("cuda-sm90/general") + not_described);
    }
    repair_gradients(queue, call, scratch);
    if (sm90::takes_bias_gradient(call)) { call.dbias.data = nullptr; }  // is there already
    launch_attention_sums(queue.stream(), call);
    check_launch("cuda-sm90/general");
}

}  // namespace

std::vector<AttentionKernel> attention_kernels() {
    AttentionKernel sm90;
    sm90.name = "cuda-sm90";
    sm90.what = "Hopper: tensor cores fed by the copy engine";
    sm90.device = DeviceKind::cuda;
    sm90.missing = missing_hopper();
    sm90.declines = sm90_declines;
    sm90.forward = sm90_forward;
    sm90.backward = sm90_backward;
    AttentionKernel decode = sm90;
    decode.name = "cuda-sm90/decode";
    decode.what = "Hopper: one query a sequence, keys split";
    decode.declines = decode_declines;
    decode.forward = decode_forward;
    decode.backward = nullptr;
    decode.reads_pages = true;
    AttentionKernel general = sm90;
    general.name = "cuda-sm90/general";
    general.what = "Hopper: tensor cores, every option";
    general.declines = general_declines;
    general.forward = general_forward;
    general.backward = general_backward;
    AttentionKernel any;
    any.name = "cuda-any";
    any.what = "GPU, every option, type and stride";
    any.device = DeviceKind::cuda;
    any.missing = missing_hopper();  // compiled for it alone
    any.declines = nullptr;          // rows of pages come as tensors
    any.forward = any_forward;
    any.backward = any_backward;
    return {decode, sm90, general, any};
}

}  // namespace heed::cuda
