# The warnings that Regard's own targets are compiled with; never passed on to those who link with them. Of CUDA sources
# the host's part is compiled alike, but for -Wpedantic: nvcc's own line directives are not ISO C++.
function(regard_warnings target)
  set(cxx "$<COMPILE_LANGUAGE:CXX>")
  target_compile_options(${target} PRIVATE "$<${cxx}:-Wall;-Wextra;-Wpedantic>" $<$<AND:${cxx},$<BOOL:${REGARD_WERROR}>>:-Werror>
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${REGARD_WERROR}>>:-Xcompiler=-Werror;SHELL:-Werror all-warnings>")
  # GCC 12 takes "text" + std::string for an overlapping copy (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<${cxx}:-Wno-restrict> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-restrict>)
  endif()
endfunction()
