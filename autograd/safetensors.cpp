#include <regard/autograd/safetensors.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <regard/autograd/error.hpp>
#include <regard/autograd/file.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/safetensors_header.hpp>

namespace regard {

static_assert(std::endian::native == std::endian::little, "safetensors files are copied as they are: little-endian");

namespace {

constexpr uint64_t max_header_bytes = 100'000'000;  // the reference implementation's limit

const char* name_in_file(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i64:
      return "I64";
    case DType::boolean:
      break;
  }
  return "BOOL";
}

// The reference implementation writes larger dtypes first; among equal sizes it has an order of its own.
int order_in_file(DType dtype) {
  constexpr std::array order = {DType::i64, DType::f64, DType::f32, DType::bf16, DType::f16, DType::boolean};
  return static_cast<int>(std::find(order.begin(), order.end(), dtype) - order.begin());
}

std::string as_json(const std::filesystem::path& path, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail<ValueError>("save_safetensors", path.string(), ": a name or text of the metadata is not valid UTF-8");
  }
}

using NamedTensor = std::pair<std::string, Tensor>;

std::string make_header(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                        const SafetensorsMetadata& metadata) {
  std::string text = "{";
  auto separate = [&] {
    if (text.back() != '{') text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      text += as_json(path, key) + ":" + as_json(path, value);
    }
    text += "}";
  }
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    separate();
    text += as_json(path, name) + ":{\"dtype\":\"" + name_in_file(tensor.dtype()) + "\",\"shape\":[";
    for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? "," : "") + std::to_string(tensor.shape()[i]);
    int64_t end = offset + tensor.numel() * element_size(tensor.dtype());
    text += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  return text;
}

// Smaller integers of the file to i64.
template <class Integer>
void widen(const std::vector<char>& bytes, int64_t* to) {
  for (size_t i = 0; i * sizeof(Integer) < bytes.size(); ++i) {
    Integer value;
    std::memcpy(&value, bytes.data() + i * sizeof(Integer), sizeof(Integer));
    to[i] = value;
  }
}

Tensor read_tensor(const std::filesystem::path& path, const InputFile& file, const safetensors::Entry& entry,
                   uint64_t data_begin) {
  Tensor tensor = empty(entry.shape, entry.dtype->dtype);
  const auto bytes = static_cast<size_t>(entry.end - entry.begin);
  if (bytes == 0) return tensor;
  const uint64_t begin = data_begin + entry.begin;
  const std::string dtype = entry.dtype->name;
  if (entry.dtype->dtype == DType::i64 && dtype != "I64") {
    std::vector<char> narrow(bytes);
    file.read(begin, narrow.data(), bytes);
    auto* to = tensor.data<int64_t>();
    if (dtype == "I32")
      widen<int32_t>(narrow, to);
    else if (dtype == "I16")
      widen<int16_t>(narrow, to);
    else if (dtype == "I8")
      widen<int8_t>(narrow, to);
    else
      widen<uint8_t>(narrow, to);
    return tensor;
  }
  file.read(begin, tensor.raw_data(), bytes);
  if (dtype == "BOOL") {
    const auto* data = static_cast<const unsigned char*>(tensor.raw_data());
    const auto* odd = std::find_if(data, data + bytes, [](unsigned char byte) { return byte > 1; });
    if (odd != data + bytes)
      fail<FileError>("load_safetensors", path.string(), ": tensor '", entry.name, "': element ", odd - data,
                      " of a BOOL is ", int{*odd}, ", neither 0 nor 1");
  }
  return tensor;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                      const SafetensorsMetadata& metadata) {
  std::vector<NamedTensor> list;
  for (const auto& [name, tensor] : tensors) {
    check<ValueError>(name != "__metadata__", "save_safetensors", path.string(),
                      ": '__metadata__' cannot be a tensor's name: the format keeps it for text");
    check<ValueError>(tensor.defined(), "save_safetensors", path.string(), ": tensor '", name,
                      "' is undefined: give it a value, or leave it out");
    list.emplace_back(name, tensor.detach());
  }
  std::stable_sort(list.begin(), list.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return order_in_file(a.second.dtype()) < order_in_file(b.second.dtype());
  });
  const std::string header = make_header(path, list, metadata);

  NoGrad no_grad;
  AtomicFile file(path);
  const auto length = static_cast<uint64_t>(header.size());
  file.write(&length, sizeof length);
  file.write(header);
  for (const auto& [name, tensor] : list) {
    Tensor dense = tensor.to(Device{}).contiguous();
    file.write(dense.raw_data(), static_cast<size_t>(dense.numel() * element_size(dense.dtype())));
  }
  file.commit();
}

SafetensorsFile load_safetensors_file(const std::filesystem::path& path) {
  InputFile file(path);
  check<FileError>(file.size() >= 8, "load_safetensors", path.string(), ": it has ", file.size(),
                   " bytes, too few for a safetensors file, which begins with 8 bytes of the header's length");
  uint64_t length = 0;
  file.read(0, &length, sizeof length);
  check<FileError>(length <= file.size() - 8, "load_safetensors", path.string(), ": its header should have ", length,
                   " bytes, but only ", file.size() - 8, " follow: it is cut off, or no safetensors file");
  check<FileError>(length <= max_header_bytes, "load_safetensors", path.string(), ": its header has ", length,
                   " bytes; the format allows ", max_header_bytes);
  std::string text(static_cast<size_t>(length), '\0');
  file.read(8, text.data(), text.size());
  safetensors::Header header = safetensors::parse_header(path, text, file.size() - 8 - length);

  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  for (const safetensors::Entry& entry : header.entries)
    result.tensors.emplace(entry.name, read_tensor(path, file, entry, 8 + length));
  return result;
}

StateDict load_safetensors(const std::filesystem::path& path) { return load_safetensors_file(path).tensors; }

}  // namespace regard
