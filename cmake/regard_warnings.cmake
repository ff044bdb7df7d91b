# The warnings that Regard's own targets are compiled with; never passed on to those who link with them.
function(regard_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${REGARD_WERROR}>:-Werror>)
  # GCC 12 takes "text" + std::string for an overlapping copy (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
endfunction()
