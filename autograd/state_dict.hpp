// StateDict: tensors by name.
#pragma once

#include <map>
#include <string>

#include <regard/autograd/tensor.hpp>

namespace regard {

/// Named tensors: what a layer saves and loads, and what a safetensors file holds.
using StateDict = std::map<std::string, Tensor>;

}  // namespace regard
