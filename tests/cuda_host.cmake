# regard_cuda_host: the CUDA backend for machines without CUDA. Its .cu files are compiled as C++, with the headers of
# cuda_host/include in the place of CUDA's. A program that links it has `find_cuda_backend()` from here, so that the linker
# leaves the library's own stand-in (autograd/backend/no_cuda.cpp) out.
find_package(Boost REQUIRED COMPONENTS context)

file(GLOB cuda_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/autograd/backend/cuda/*.cu")
file(GLOB cuda_runtime CONFIGURE_DEPENDS cuda_host/*.cpp)
set_source_files_properties(${cuda_runtime} PROPERTIES COMPILE_OPTIONS "${regard_sanitize_kernel_options}")
set_source_files_properties(${cuda_kernels} PROPERTIES
  LANGUAGE CXX COMPILE_OPTIONS "-xc++;${regard_sanitize_kernel_options}")
add_library(regard_cuda_host OBJECT ${cuda_kernels} ${cuda_runtime})
target_include_directories(regard_cuda_host PUBLIC cuda_host/include)
target_compile_definitions(regard_cuda_host PRIVATE REGARD_CUDA_EXACT_BLOCKS)
target_link_libraries(regard_cuda_host PUBLIC regard::regard PRIVATE BLIS::BLIS Boost::context)
regard_warnings(regard_cuda_host)
target_compile_options(regard_cuda_host
  PUBLIC -Wno-unknown-pragmas $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>  # `#pragma unroll` is for nvcc
  PRIVATE -ffp-contract=off $<$<CONFIG:Release>:-O1>)
