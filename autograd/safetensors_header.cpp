#include <regard/autograd/safetensors_header.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include <regard/autograd/error.hpp>

namespace regard::safetensors {

namespace {

constexpr std::array dtypes = {
    FileDType{"F64", 8, DType::f64},      FileDType{"F32", 4, DType::f32}, FileDType{"F16", 2, DType::f16},
    FileDType{"BF16", 2, DType::bf16},    FileDType{"I64", 8, DType::i64}, FileDType{"I32", 4, DType::i64},
    FileDType{"I16", 2, DType::i64},      FileDType{"I8", 1, DType::i64},  FileDType{"U8", 1, DType::i64},
    FileDType{"BOOL", 1, DType::boolean},
};

// A long or hostile name is cut in messages.
std::string in_quotes(const std::string& name) {
  std::string text = "'";
  for (char c : name.substr(0, 200)) text += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text + (name.size() > 200 ? "...'" : "'");
}

// What the header says of one tensor, before it is checked.
struct Described {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Receives the JSON text piece by piece and accepts only what a header may hold, at most three levels deep, so that
// neither nesting nor anything else in the file decides how much memory or stack is used.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Described> tensors;
  SafetensorsMetadata metadata;
  std::string problem;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t number) override {
    if (number < 0)
      return numbers_ ? refuse(field_ + " holds the negative number " + std::to_string(number)) : value("a number");
    return number_unsigned(static_cast<uint64_t>(number));
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (!numbers_) return value("a number");
    if (numbers_->size() >= (field_ == "shape" ? size_t{Shape::max_dims} : size_t{2}))
      return refuse(field_ == "shape" ? "its shape has more than the 8 dimensions that Regard's tensors have"
                                      : "data_offsets must be two numbers, there are more");
    numbers_->push_back(number);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override {
    return numbers_ ? refuse(field_ + " holds " + text.substr(0, 40) + ", which is not a 64-bit whole number")
                    : value("a number");
  }
  bool string(string_t& text) override {
    if (place_ == Place::tensor && field_ == "dtype" && !numbers_) {
      tensors.back().dtype = text;
      return true;
    }
    if (place_ == Place::metadata) {
      metadata[field_] = text;
      return true;
    }
    return value("a string");
  }
  bool binary(binary_t&) override { return value("binary data"); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside:
        place_ = Place::header;
        return true;
      case Place::header:
        if (name_ == "__metadata__") {
          place_ = Place::metadata;
        } else {
          place_ = Place::tensor;
          tensors.push_back({name_, {}, {}, {}});
        }
        return true;
      default:
        return value("an object");
    }
  }
  bool key(string_t& text) override {
    switch (place_) {
      case Place::header:
        name_ = text;
        field_.clear();
        return names_.insert(text).second || refuse("it is there twice");
      case Place::metadata:
        field_ = text;
        return !metadata.contains(text) || refuse("the key " + in_quotes(text) + " is there twice");
      default: {
        field_ = text;
        const Described& tensor = tensors.back();
        if (text != "dtype" && text != "shape" && text != "data_offsets")
          return refuse("unknown field " + in_quotes(text));
        bool twice =
            text == "dtype" ? tensor.dtype.has_value() : (text == "shape" ? tensor.shape : tensor.offsets).has_value();
        return !twice || refuse(text + " is there twice");
      }
    }
  }
  bool end_object() override {
    place_ = place_ == Place::header ? Place::outside : Place::header;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == "dtype" || numbers_) return value("a list");
    numbers_ = &(field_ == "shape" ? tensors.back().shape : tensors.back().offsets).emplace();
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    problem = "the header is not valid JSON: " + std::string(error.what()).substr(0, 300);
    return false;
  }

 private:
  enum class Place : uint8_t { outside, header, metadata, tensor };

  bool refuse(const std::string& what) {
    problem = (name_ == "__metadata__" ? "__metadata__" : "tensor " + in_quotes(name_)) + ": " + what;
    return false;
  }
  // Something stands where it does not belong.
  bool value(const std::string& what) {
    switch (place_) {
      case Place::outside:
        problem = "the header is " + what + ", not an object";
        return false;
      case Place::header:
        return refuse(what + " stands where an object belongs");
      case Place::metadata:
        return refuse("the value of " + in_quotes(field_) + " is " + what + "; only strings are allowed");
      default:
        return refuse(what + " stands in " + field_ + ", where " +
                      (field_ == "dtype" ? "a string belongs" : "a list of whole numbers belongs"));
    }
  }

  Place place_ = Place::outside;
  std::set<std::string> names_;
  std::string name_;                          // of the tensor, or __metadata__
  std::string field_;                         // of the tensor, or the key in the metadata
  std::vector<uint64_t>* numbers_ = nullptr;  // the list that is being read
};

[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& what) {
  fail<FileError>("load_safetensors", path.string(), ": ", what);
}

// One tensor's fields, checked on their own.
Entry checked(const std::filesystem::path& path, const Described& described, uint64_t data_bytes) {
  auto refuse = [&](const std::string& what) {
    refuse_file(path, "tensor " + in_quotes(described.name) + ": " + what);
  };
  if (!described.dtype) refuse("dtype is missing");
  if (!described.shape) refuse("shape is missing");
  if (!described.offsets) refuse("data_offsets is missing");
  Entry entry;
  entry.name = described.name;
  entry.dtype = find_dtype(*described.dtype);
  if (!entry.dtype)
    refuse("dtype " + in_quotes(*described.dtype) +
           " is not supported; Regard reads F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL");

  // Also with sizes of 0 counted as 1, since strides are products of those.
  uint64_t bytes = static_cast<uint64_t>(entry.dtype->bytes);
  uint64_t reach = static_cast<uint64_t>(element_size(entry.dtype->dtype));
  bool fits = true;
  for (uint64_t size : *described.shape) {
    constexpr auto limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    fits = fits && size <= limit && (size == 0 || reach <= limit / size);
    if (!fits) break;
    bytes *= size;
    reach *= std::max<uint64_t>(size, 1);
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  if (!fits) refuse("the number of elements of its shape is too large");

  if (described.offsets->size() != 2) refuse("data_offsets must be two numbers, the beginning and the end");
  entry.begin = (*described.offsets)[0];
  entry.end = (*described.offsets)[1];
  std::string range = "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end) refuse(range + " end before they begin");
  if (entry.end > data_bytes)
    refuse(range + " reach past the end of the file, which has " + std::to_string(data_bytes) + " bytes of data");
  if (entry.end - entry.begin != bytes)
    refuse(range + " hold " + std::to_string(entry.end - entry.begin) + " bytes, but " + entry.dtype->name +
           " of shape " + to_string(entry.shape) + " takes " + std::to_string(bytes));
  return entry;
}

}  // namespace

const FileDType* find_dtype(const std::string& name) {
  auto found = std::find_if(dtypes.begin(), dtypes.end(), [&](const FileDType& d) { return name == d.name; });
  return found == dtypes.end() ? nullptr : &*found;
}

Header parse_header(const std::filesystem::path& path, const std::string& text, uint64_t data_bytes) {
  auto refuse = [&](const std::string& what) { refuse_file(path, what); };
  if (text.empty() || text[0] != '{') refuse("the header does not begin with '{'");
  Reader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) refuse(reader.problem);

  Header header;
  header.metadata = std::move(reader.metadata);
  header.entries.reserve(reader.tensors.size());
  for (const Described& described : reader.tensors) header.entries.push_back(checked(path, described, data_bytes));
  std::sort(header.entries.begin(), header.entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  // Every byte belongs to exactly one tensor.
  uint64_t covered = 0;
  const Entry* former = nullptr;
  for (const Entry& entry : header.entries) {
    if (entry.begin < covered)
      refuse("tensor " + in_quotes(entry.name) + ": its data overlaps that of tensor " + in_quotes(former->name));
    if (entry.begin > covered)
      refuse("tensor " + in_quotes(entry.name) + ": a hole of " + std::to_string(entry.begin - covered) +
             " bytes lies before its data");
    covered = entry.end;
    former = &entry;
  }
  if (covered != data_bytes) refuse(std::to_string(data_bytes - covered) + " unindexed bytes after the last tensor");
  return header;
}

}  // namespace regard::safetensors
