#pragma once
/// What the checks of every operation share.

#include <heed/context.h>
#include <heed/view.h>

#include "base/refuse.h"

#include <initializer_list>
#include <string>
#include <string_view>

namespace heed {

/// Positions are computed with as doubles, which are exact up to here.
inline constexpr std::int64_t largest_position = std::int64_t{1} << 53;
/// What may stand in a tensor of numbers.
inline constexpr std::initializer_list<DType> float_types = {DType::f32, DType::bf16, DType::f16, DType::f64};

/// The public function that is being checked, for errors, and the device of its context: where its tensors have to be.
/// A name alone stands for the CPU.
struct Caller {
    const char* function;
    Device device{};

    Caller(const char* name) : function(name) {}
    Caller(const char* name, const Context& context) : function(name), device(context.device()) {}
    operator const char*() const { return function; }
};

/// One of the listed types, or refuse.
void check_dtype(const char* function, const char* argument, const View& view, std::initializer_list<DType> allowed);
/// A view with elements has memory behind it, on the caller's device, or refuse.
void check_memory(Caller function, const char* argument, const View& view);
/// The same for small descriptions (lengths, positions, slopes, sinks), which may also be in memory of the CPU.
void check_memory_or_host(Caller function, const char* argument, const View& view);
/// A tensor [batch, heads, length, size].
void check_rank4(Caller function, const char* argument, const View& view);
/// i64 or i32 [batch], each 0 to `most`.
void check_lengths(Caller function, const char* argument, const View& lengths, std::int64_t batch, std::int64_t most);
/// i64 or i32 [n+1]: 0 first, none below the one before it or above `most`.
void check_cumulative(Caller function, const char* argument, const View& cumulative, std::int64_t most);
/// A writable output: right shape, no element twice, apart from every listed input.
void check_output(Caller function, const char* argument, const View& output, const Shape& shape,
                  std::initializer_list<DType> allowed);
/// An output shares no memory with another tensor, or refuse. Absent ones share none.
void check_disjoint(const char* function, std::string_view argument, const View& output, std::string_view other_name,
                    const View& other);

}  // namespace heed
