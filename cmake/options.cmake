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

# Compiles the files of a folder as one: headers are read and templates made once, which takes a third of the time. So a
# name in an unnamed namespace is unique within its folder. A compiler cache does better with single files; building
# with one also shows where an #include is missing.
function(heed_join_folders target)
  if(CMAKE_CXX_COMPILER_LAUNCHER OR NOT HEED_JOIN_FOLDERS)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(folder ${source} ABSOLUTE)
    get_filename_component(folder "${folder}" DIRECTORY)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${folder}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A local name may be one that another file of the folder has given to something of its own.
  target_compile_options(${target} PRIVATE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>)
endfunction()
