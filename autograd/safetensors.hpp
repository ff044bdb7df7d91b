// Safetensors: named tensors on disk, as Hugging Face's library of that name reads and writes them.
//
// A file is the header's length (8 bytes, little-endian), a JSON header that gives each tensor's dtype, shape and
// place, and the elements in row-major order, little-endian.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <regard/autograd/state_dict.hpp>

namespace regard {

/// Text that a safetensors file carries beside its tensors.
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  StateDict tensors;
  SafetensorsMetadata metadata;
};

/// Writes the tensors in row-major order, whatever their strides, in the reference implementation's order: larger
/// dtypes first, so that every tensor is aligned, then by name. All of it or nothing: see write_file_atomically().
/// An undefined tensor, a name or text that is not UTF-8, or a tensor named `__metadata__` is a ValueError; what the
/// system refuses is a FileError.
void save_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                      const SafetensorsMetadata& metadata = {});

/// The tensors of a file, on the CPU, in memory of their own. F64, F32, F16, BF16, I64 and BOOL become f64, f32, f16,
/// bf16, i64 and bool; I32, I16, I8 and U8 become i64. The whole header is checked before any tensor is allocated; a
/// file that breaks a rule of the format, or has another dtype, is a FileError that names file, tensor and fault.
StateDict load_safetensors(const std::filesystem::path& path);
/// The same with the file's metadata.
SafetensorsFile load_safetensors_file(const std::filesystem::path& path);

}  // namespace regard
