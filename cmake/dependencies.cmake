# Private to the library; docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
target_link_libraries(heed PUBLIC Threads::Threads)

# find_package, or an error that says how to install what is missing. A macro, so that the caller sees the results.
macro(heed_find package version debian)
  find_package(${package} ${version} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "heed needs ${package} ${version} or newer, and this machine has none. "
      "On Debian and Ubuntu: sudo apt-get install ${debian}. Or everything that is missing at once: tools/bootstrap build")
  endif()
endmacro()

# A wheel is built with what pyproject.toml asks the Python index for, the headers of nlohmann_json among it.
find_package(nlohmann_json 3.9 QUIET)
if(NOT nlohmann_json_FOUND AND SKBUILD)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import nlohmann_json, pathlib; print(pathlib.Path(nlohmann_json.__file__).parent / 'include')"
    OUTPUT_VARIABLE heed_json_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(EXISTS "${heed_json_include}/nlohmann/json.hpp")
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    set_target_properties(nlohmann_json::nlohmann_json PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${heed_json_include}")
  endif()
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  heed_find(nlohmann_json 3.9 nlohmann-json3-dev)
endif()
target_link_libraries(heed PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)

# Matrix products. Debian's oneDNN runs on GCC's OpenMP, and src/cpu/matmul/matmul_onednn.cc tells that how many threads to use.
include(${PROJECT_SOURCE_DIR}/cmake/onednn.cmake)
find_package(OpenMP QUIET COMPONENTS CXX)
if(TARGET DNNL::dnnl AND OpenMP_CXX_LIB_NAMES MATCHES "gomp")
  target_sources(heed PRIVATE src/cpu/matmul/matmul_onednn.cc)
  target_link_libraries(heed PRIVATE DNNL::dnnl gomp)
else()
  target_sources(heed PRIVATE src/cpu/matmul/matmul_onednn_absent.cc)
endif()
