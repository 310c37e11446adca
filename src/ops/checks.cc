#include "ops/checks.h"

#include "base/dispatch.h"
#include "base/overlap.h"

namespace heed {

void check_dtype(const char* function, const char* argument, const View& view, std::initializer_list<DType> allowed) {
    std::string names;
    for (const DType dtype : allowed) {
        if (view.dtype() == dtype) { return; }
        if (names == name_of(dtype)) { continue; }
        names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    refuse(function, argument, names, std::string(name_of(view.dtype())));
}

namespace {

void check_pointer(const char* function, const char* argument, const View& view) {
    if (view.data() == nullptr && view.shape().elements() > 0) {
        refuse(function, argument, "memory", "a null pointer");
    }
}

}  // namespace

void check_memory(Caller function, const char* argument, const View& view) {
    check_pointer(function, argument, view);
    if (!(view.device() == function.device)) {
        refuse(function, argument, "memory on " + to_string(function.device) + ", as the context",
               to_string(view.device()));
    }
}

void check_memory_or_host(Caller function, const char* argument, const View& view) {
    if (view.device().kind == DeviceKind::cpu) {
        check_pointer(function, argument, view);
    } else {
        check_memory(function, argument, view);
    }
}

void check_rank4(Caller function, const char* argument, const View& view) {
    if (!view) { refuse(function, argument, "a tensor of 4 axes", "none"); }
    if (view.rank() != 4) {
        refuse(function, argument, "4 axes [batch, heads, length, size]", to_string(view.shape()));
    }
    check_memory(function, argument, view);
}

void check_lengths(Caller function, const char* argument, const View& lengths, std::int64_t batch, std::int64_t most) {
    if (lengths.rank() != 1 || lengths.extent(0) != batch) {
        refuse(function, argument, "shape " + to_string(Shape{batch}), to_string(lengths.shape()));
    }
    check_memory_or_host(function, argument, lengths);
    check_dtype(function, argument, lengths, {DType::i64, DType::i32});
    if (lengths.device().kind != DeviceKind::cpu) { return; }  // kernels there cut what does not fit
    for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t length = read_integer(lengths.dtype(), lengths.data(), b * lengths.stride(0));
        if (length < 0 || length > most) {
            refuse(function, std::string(argument) + "[" + std::to_string(b) + "]", "0 to " + std::to_string(most),
                   std::to_string(length));
        }
    }
}

void check_cumulative(Caller function, const char* argument, const View& cumulative, std::int64_t most) {
    if (cumulative.rank() != 1 || cumulative.extent(0) < 1) {
        refuse(function, argument, "shape [N+1] for N sequences", to_string(cumulative.shape()));
    }
    check_memory_or_host(function, argument, cumulative);
    check_dtype(function, argument, cumulative, {DType::i64, DType::i32});
    if (cumulative.device().kind != DeviceKind::cpu) { return; }  // kernels there cut what does not fit
    std::int64_t last = 0;
    for (std::int64_t n = 0; n < cumulative.extent(0); ++n) {
        const std::int64_t value = read_integer(cumulative.dtype(), cumulative.data(), n * cumulative.stride(0));
        if (n == 0 ? value != 0 : value < last || value > most) {
            refuse(function, std::string(argument) + "[" + std::to_string(n) + "]",
                   n == 0 ? "0" : std::to_string(last) + " to " + std::to_string(most), std::to_string(value));
        }
        last = value;
    }
}

void check_output(Caller function, const char* argument, const View& output, const Shape& shape,
                  std::initializer_list<DType> allowed) {
    if (!output) { refuse(function, argument, "a tensor of shape " + to_string(shape), "none"); }
    if (!(output.shape() == shape)) { refuse(function, argument, to_string(shape), to_string(output.shape())); }
    check_dtype(function, argument, output, allowed);
    check_memory(function, argument, output);
    if (overlaps_itself(output)) {
        refuse(function, argument, "strides that give every element a place of its own", to_string(output.strides()));
    }
}

void check_disjoint(const char* function, std::string_view argument, const View& output, std::string_view other_name,
                    const View& other) {
    if (overlaps(output, other)) {
        refuse(function, std::string(argument), "memory apart from " + std::string(other_name), "an overlap");
    }
}

}  // namespace heed
