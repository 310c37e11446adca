#pragma once
#include <cstddef>

namespace heed::detail {

constexpr std::size_t huge_page = std::size_t{1} << 21;

/// Asks for huge pages for what lies wholly inside of [memory, memory + bytes). A wish: nothing happens where the
/// system has none to give.
void prefer_huge_pages(void* memory, std::size_t bytes);

}  // namespace heed::detail
