# Install rules: the library, its headers, a CMake package (find_package(heed), target heed::heed) and heed.pc.
include(CMakePackageConfigHelpers)
set(heed_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heed)

install(TARGETS heed EXPORT heed-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/heed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT heed-targets NAMESPACE heed:: DESTINATION ${heed_package_dir})

# What a consumer must link besides heed itself: everything behind a static library, nothing behind a shared one.
set(heed_pc_libraries "-pthread")
set(heed_needs_dnnl OFF)
get_target_property(heed_links heed LINK_LIBRARIES)
if(NOT heed_type STREQUAL "SHARED_LIBRARY" AND heed_links MATCHES "DNNL::dnnl")
  set(heed_needs_dnnl ON)
  string(APPEND heed_pc_libraries " -ldnnl -lgomp")
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/heed-config.cmake.in
  ${PROJECT_BINARY_DIR}/heed-config.cmake INSTALL_DESTINATION ${heed_package_dir})
# Before 1.0 the minor version promises compatibility.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/heed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/heed-config.cmake ${PROJECT_BINARY_DIR}/heed-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/onednn.cmake
  DESTINATION ${heed_package_dir})

# Paths relative to heed.pc itself: the installed tree may be moved.
file(RELATIVE_PATH heed_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/heed.pc.in ${PROJECT_BINARY_DIR}/heed.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/heed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
