# Writes the files of page/ as a C++ table, so that the page is inside the program.
#   cmake -DPAGE=folder -DOUT=file.cc -P embed.cmake
file(GLOB files RELATIVE ${PAGE} ${PAGE}/*)
list(SORT files)
set(arrays "")
set(table "")
set(number 0)
foreach(file ${files})
  if(file MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(file MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(file MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(file MATCHES "\\.svg$")
    set(type "image/svg+xml")
  elseif(file MATCHES "\\.json$")
    set(type "application/json")
  else()
    continue()
  endif()
  file(READ ${PAGE}/${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char file_${number}[] = {${bytes}};\n")
  string(APPEND table "    {\"/${file}\", \"${type}\", text_of(file_${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Made by embed.cmake from page/.
#include \"page_files.h\"

namespace heed::web {
namespace {

${arrays}
template <std::size_t N>
std::string_view text_of(const unsigned char (&bytes)[N]) {
    return {reinterpret_cast<const char*>(bytes), N};
}

}  // namespace

std::span<const PageFile> page_files() {
    static const PageFile files[] = {
${table}    };
    return files;
}

}  // namespace heed::web
")
