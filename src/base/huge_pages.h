#pragma once
#include <cstddef>
#include <memory>

namespace heed::detail {

constexpr std::size_t huge_page = std::size_t{1} << 21;

/// Asks for huge pages for what lies wholly inside of [memory, memory + bytes). A wish: nothing happens where the
/// system has none to give.
void prefer_huge_pages(void* memory, std::size_t bytes);

/// Memory for what stays and is read often, such as weights, aligned to 64 bytes: small pieces share blocks, so that
/// they, too, lie in huge pages. A block goes when the last piece of it has gone.
std::shared_ptr<void> lasting_memory(std::size_t bytes);

}  // namespace heed::detail
