# REGARD_SANITIZE: everything is compiled with the address and undefined-behaviour sanitizers, and without optimization,
# which takes a third of the time. SIMD kernels need some, to be bearable to run; there the checks of addresses are calls
# instead of code in place, and those checks are left out that the address sanitizer makes as well, or that GCC and Clang
# take minutes over for one file.
add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
add_link_options(-fsanitize=address,undefined)
add_compile_definitions(REGARD_SANITIZE _GLIBCXX_ASSERTIONS)
set(regard_sanitize_kernel_options -O1 -fno-sanitize-address-use-after-scope
  -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND regard_sanitize_kernel_options -mllvm -asan-instrumentation-with-call-threshold=0)
else()
  list(APPEND regard_sanitize_kernel_options --param=asan-instrumentation-with-call-threshold=0)
endif()
