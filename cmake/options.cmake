# What to build. Embedders get the library alone; a checkout of heed builds all of it.
option(HEED_BUILD_CLI "Build the command line" ${PROJECT_IS_TOP_LEVEL})
option(HEED_BUILD_PYTHON "Build the Python module (pip install . does; needs nanobind)" OFF)
option(HEED_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(HEED_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(HEED_BUILD_BENCH "Build the benchmarks" OFF)
option(HEED_INSTALL "Add install rules" ${PROJECT_IS_TOP_LEVEL})
option(HEED_JOIN_FOLDERS "Compile the files of a folder as one (never with a compiler cache)" ${PROJECT_IS_TOP_LEVEL})
option(HEED_MODEL_TILES "Kernels for AMX on a model of its tiles in C++: to test them on other CPUs (slow)" OFF)
option(HEED_STRICT "Warnings are errors (for work on heed itself)" OFF)
set(HEED_INSTRUCTION_SETS "" CACHE STRING "Kernels for these alone, e.g. portable;avx2; empty: all that the target has")
set(HEED_SANITIZE "" CACHE STRING "Sanitizers for everything built here, e.g. address,undefined")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()
if(HEED_SANITIZE)
  add_compile_options(-fsanitize=${HEED_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEED_SANITIZE})
endif()

# Strict for us, never for embedders.
function(heed_strict target)
  if(HEED_STRICT)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
      -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Werror)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC 12 sees overlaps and overruns in std::string + that are not there, depending on the length of a literal.
      target_compile_options(${target} PRIVATE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/join_folders.cmake)
