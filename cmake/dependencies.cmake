# Private to the library; docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
target_link_libraries(heed PUBLIC Threads::Threads)

find_package(nlohmann_json 3.9 REQUIRED)
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
