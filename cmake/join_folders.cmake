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
