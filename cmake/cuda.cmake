# The kernels for NVIDIA GPUs. HEED_CUDA names a CUDA 13 toolkit (its folder holds bin/nvcc): an installed one, or the one
# that tools/cuda_env makes from the Python package index. Empty: heed is built without them, and src/cuda/*_absent.cc
# stand in.
set(HEED_CUDA "" CACHE PATH "A CUDA 13 toolkit for the kernels of GPUs, e.g. /usr/local/cuda; empty: without")
file(GLOB_RECURSE heed_cuda_hosts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cc)
set(heed_cuda_absent ${heed_cuda_hosts})
list(FILTER heed_cuda_absent INCLUDE REGEX "_absent\\.cc$")
list(FILTER heed_cuda_hosts EXCLUDE REGEX "_absent\\.cc$")

function(heed_add_cuda target)
  if(NOT HEED_CUDA)
    target_sources(${target} PRIVATE ${heed_cuda_absent})
    return()
  endif()
  find_program(heed_nvcc nvcc PATHS ${HEED_CUDA}/bin NO_DEFAULT_PATH REQUIRED)
  find_library(heed_cudart cudart_static PATHS ${HEED_CUDA}/lib64 ${HEED_CUDA}/lib NO_DEFAULT_PATH REQUIRED)
  find_path(heed_cuda_include cuda_runtime_api.h PATHS ${HEED_CUDA}/include NO_DEFAULT_PATH REQUIRED)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
  foreach(kernel ${kernels})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src/cuda ${kernel})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    # -arch=sm_90a would also compile for sm_90, which has no wgmma.
    add_custom_command(OUTPUT ${object}
      COMMAND ${heed_nvcc} -std=c++20 -O3 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a
        -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden -I${PROJECT_SOURCE_DIR}/include
        -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${kernel} -o ${object}
      DEPENDS ${kernel} DEPFILE ${object}.d COMMENT "nvcc ${name}" VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()
  target_sources(${target} PRIVATE ${heed_cuda_hosts})
  target_include_directories(${target} SYSTEM PRIVATE ${heed_cuda_include})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${heed_cudart}> ${CMAKE_DL_LIBS} rt)
endfunction()
