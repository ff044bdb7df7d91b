// Stands for the CUDA backend where Regard is built without it. Alone in its file: what links a backend of its own in
// takes this file's place.
#include <regard/autograd/backend/cuda_backend.hpp>

namespace regard {

const CudaBackend* find_cuda_backend() { return nullptr; }
bool set_cuda_synchronous(bool) { return false; }

}  // namespace regard
