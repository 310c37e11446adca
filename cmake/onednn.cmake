# Debian's own CMake package of oneDNN asks for OpenCL's headers, which nothing installs with it. A header and a library
# are all that heed needs; installed with heed, because a static library passes the need on.
if(NOT TARGET DNNL::dnnl AND NOT CMAKE_CROSSCOMPILING AND NOT CMAKE_DISABLE_FIND_PACKAGE_dnnl)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
  find_library(DNNL_LIBRARY dnnl)
  mark_as_advanced(DNNL_INCLUDE_DIR DNNL_LIBRARY)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    add_library(DNNL::dnnl UNKNOWN IMPORTED GLOBAL)
    set_target_properties(DNNL::dnnl PROPERTIES
      IMPORTED_LOCATION "${DNNL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
  endif()
endif()
