# Each file of src/cpu/isa is compiled for one instruction set and exports one table; which one runs is
# decided at run time. A set that the target or compiler lacks is simply not built.
function(heed_add_instruction_sets target)
  set(sets portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    list(APPEND sets avx2 avx512 avx512bf16)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    list(APPEND sets neon)
  endif()
  if(HEED_INSTRUCTION_SETS)
    set(asked ${HEED_INSTRUCTION_SETS})
    if("avx512bf16" IN_LIST asked)
      list(APPEND asked avx512)  # whose kernels it uses for all that is not bf16
    endif()
    list(JOIN asked "|" asked)
    list(FILTER sets INCLUDE REGEX "^(portable|${asked})$")  # portable is what the others fall back to
  endif()
  if("avx512bf16" IN_LIST sets)
    list(APPEND sets amx)  # which uses the kernels of that one where there is nothing for tiles
  endif()
  set(flags_portable "")
  set(flags_neon "")
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  if(HEED_MODEL_TILES)
    set(flags_amx ${flags_avx512bf16} -DHEED_MODEL_TILES)
    target_compile_definitions(${target} PRIVATE HEED_AMX_IS_MODELLED)
  else()
    set(flags_amx ${flags_avx512bf16} -mamx-tile -mamx-bf16)
  endif()
  # -O3 in every build type but Debug. Under sanitizers the build's own level, as -O3 takes minutes a file then.
  set(optimise $<$<NOT:$<CONFIG:Debug>>:-O3>)
  if(HEED_SANITIZE)
    set(optimise "")
    # What AddressSanitizer sees anyway; a fifth of the compile time.
    if(HEED_SANITIZE MATCHES "address.*undefined")
      list(APPEND optimise -fno-sanitize=null,object-size)
    endif()
  endif()
  # GCC 12's own AVX-512 header starts from undefined registers and then warns of it; Clang's has macros that are C.
  set(quiet -Wno-maybe-uninitialized -Wno-uninitialized)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(quiet -Wno-c99-extensions -Wno-unused-const-variable)
  endif()
  foreach(set ${sets})
    # NAME.cc, and PART_NAME.cc for what need not be compiled again with attention.
    file(GLOB source CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/isa/${set}.cc
      ${PROJECT_SOURCE_DIR}/src/cpu/isa/*_${set}.cc)
    target_sources(${target} PRIVATE ${source})
    # Contraction: one rounding for a*b + c, as the hardware does it.
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
      "${flags_${set}};-ffp-contract=fast;-fno-math-errno;-fno-trapping-math;${quiet};${optimise}")
    # Products of bytes, which every CPU with bf16 has.
    if(set STREQUAL avx512bf16)
      set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cpu/isa/quantized_avx512bf16.cc APPEND PROPERTY COMPILE_OPTIONS
        -mavx512vnni)
    endif()
    if(NOT set STREQUAL amx)  # it comes with avx512bf16
      string(TOUPPER ${set} upper)
      target_compile_definitions(${target} PRIVATE HEED_HAS_${upper})
    endif()
  endforeach()
endfunction()
