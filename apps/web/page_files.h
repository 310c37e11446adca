#pragma once
#include <span>
#include <string_view>

namespace heed::web {

/// A file of the page, inside the program. The table is made from page/ when heed is built.
struct PageFile {
    std::string_view path;  ///< "/learn.js"
    std::string_view type;  ///< "text/javascript; charset=utf-8"
    std::string_view bytes;
};
std::span<const PageFile> page_files();

}  // namespace heed::web
