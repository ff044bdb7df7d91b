# The example programs once more, with the CUDA backend of cuda_host.cmake, in tests/cuda_examples/: --device cuda then
# runs on the CPU, by the backend's own kernels. The programs' objects are those of examples/: nothing is compiled again.
if(NOT TARGET regard_examples_common)
  return()
endif()

set(cuda_programs)
file(GLOB programs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.cpp")
foreach(program IN LISTS programs)
  cmake_path(GET program STEM name)
  add_executable(cuda_${name} $<TARGET_OBJECTS:${name}>)
  set_target_properties(cuda_${name} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cuda_examples")
  target_link_libraries(cuda_${name} PRIVATE regard_cuda_host regard_examples_common)
  list(APPEND cuda_programs cuda_${name})
endforeach()

regard_test_program(regard_cuda_examples_tests LABEL cuda TIMEOUT 900 FILES ${cuda_examples_tests})
add_dependencies(regard_cuda_examples_tests ${cuda_programs})
