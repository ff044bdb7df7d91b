// The header of a safetensors file, read and checked. For safetensors.cpp alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <regard/autograd/dtype.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/shape.hpp>

namespace regard::safetensors {

/// An element type of the format.
struct FileDType {
  const char* name;
  int64_t bytes;
  DType dtype;  ///< what it becomes
};

/// Null when Regard does not read it.
const FileDType* find_dtype(const std::string& name);

struct Entry {
  std::string name;
  const FileDType* dtype = nullptr;
  Shape shape;
  uint64_t begin = 0;  ///< bytes from the end of the header
  uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  ///< by their place in the file
  SafetensorsMetadata metadata;
};

/// Parses the JSON text and checks everything that it says against a file with `data_bytes` bytes of elements.
/// FileError naming `path`.
Header parse_header(const std::filesystem::path& path, const std::string& text, uint64_t data_bytes);

}  // namespace regard::safetensors
