#include <regard/layers/onnx/graph.hpp>

#include <functional>
#include <optional>

#include <regard/autograd/error.hpp>
#include <regard/autograd/file.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/version.hpp>
#include <regard/layers/onnx/protobuf.hpp>

namespace regard::onnx {

namespace {

constexpr int64_t ir_version = 8;                    // the one that came with the operator set
constexpr uint64_t largest_file = (1ULL << 31) - 1;  // protocol buffers hold no larger message

// Numbers of fields and enums are those of onnx.proto.
int64_t data_type(const std::string& name, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 1;
    case DType::i64:
      return 7;
    case DType::boolean:
      return 9;
    case DType::f16:
      return 10;
    case DType::f64:
      return 11;
    case DType::bf16:
      return 16;
  }
  fail<DTypeError>("onnx", "'", name, "' has the dtype ", dtype, ", which is not written");
}

MessageWriter attribute(const std::string& name, const Attribute& value) {
  MessageWriter message;
  message.bytes(1, name);
  if (const auto* real = std::get_if<float>(&value)) return message.real(2, *real).number(20, 1);
  if (const auto* whole = std::get_if<int64_t>(&value)) return message.number(3, *whole).number(20, 2);
  if (const auto* text = std::get_if<std::string>(&value)) return message.bytes(4, *text).number(20, 3);
  for (int64_t whole : std::get<std::vector<int64_t>>(value)) message.number(8, whole);
  return message.number(20, 7);
}

MessageWriter port(const std::string& name, DType dtype, const Sizes& sizes) {
  MessageWriter tensor;
  tensor.number(1, data_type(name, dtype));
  MessageWriter shape;
  for (const Size& size : sizes) {
    MessageWriter dimension;
    if (const auto* fixed = std::get_if<int64_t>(&size))
      dimension.number(1, *fixed);
    else
      dimension.bytes(2, std::get<std::string>(size));
    shape.message(1, dimension);
  }
  tensor.message(2, shape);
  return MessageWriter().bytes(1, name).message(2, MessageWriter().message(1, tensor));
}

uint64_t byte_count(const Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * static_cast<uint64_t>(element_size(tensor.dtype()));
}

// A tensor's message, but for its elements, which come last.
MessageWriter tensor_head(const std::string& name, const Tensor& tensor) {
  MessageWriter message;
  for (int64_t size : tensor.shape()) message.number(1, size);
  return message.number(2, data_type(name, tensor.dtype())).bytes(8, name).length(9, byte_count(tensor));
}

}  // namespace

std::string Graph::free_name(const std::string& wanted) {
  for (int64_t count = names_[wanted]++; count > 0; count = names_[wanted]++) {
    const std::string numbered = wanted + "_" + std::to_string(count);
    if (!names_.contains(numbered)) {
      names_[numbered] = 1;
      return numbered;
    }
  }
  return wanted;
}

Value Graph::input(const std::string& name, DType dtype, const Sizes& sizes) {
  check<ValueError>(!name.empty() && !names_.contains(name), "onnx", "the name '", name,
                    "' of an input is empty or taken");
  names_[name] = 1;
  inputs_.push_back({name, dtype, sizes});
  return {name};
}

void Graph::output(const std::string& name, const Value& value, DType dtype, const Sizes& sizes) {
  check<ValueError>(!name.empty() && !names_.contains(name), "onnx", "the name '", name,
                    "' of an output is empty or taken");
  check<ValueError>(value.defined(), "onnx", "output '", name, "' is given no value");
  names_[name] = 1;
  // An operation of its own, so that an output's name is the one asked for whatever the value is.
  nodes_.push_back({"output/" + name, "Identity", {value.name}, {name}, {}});
  outputs_.push_back({name, dtype, sizes});
}

std::vector<Value> Graph::op(const std::string& type, const std::vector<Value>& inputs, const Attributes& attributes,
                             int64_t outputs) {
  Node node;
  node.type = type;
  node.name = free_name((scope_.empty() ? "" : scope_ + "/") + type);
  for (const Value& input : inputs) node.inputs.push_back(input.name);
  while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
  node.attributes = attributes;
  std::vector<Value> values;
  for (int64_t i = 0; i < outputs; ++i) {
    values.push_back({free_name(node.name + ":" + std::to_string(i))});
    node.outputs.push_back(values.back().name);
  }
  nodes_.push_back(std::move(node));
  return values;
}

Value Graph::op(const std::string& type, const std::vector<Value>& inputs, const Attributes& attributes) {
  return op(type, inputs, attributes, 1)[0];
}

Value Graph::constant(const std::string& name, const Tensor& tensor) {
  check_defined("onnx", name.c_str(), tensor);
  check<DeviceError>(tensor.device() == Device{}, "onnx", "'", name, "' is not on the CPU");
  data_type(name, tensor.dtype());
  const auto known = constant_names_.find(tensor.impl());
  if (known != constant_names_.end()) return {known->second};
  const std::string stored = free_name(name);
  constants_.emplace_back(stored, tensor);  // a handle: the address stays this tensor's
  constant_names_[tensor.impl()] = stored;
  return {stored};
}

Value Graph::transposed(const std::string& name, const Tensor& matrix) {
  check_defined("onnx", name.c_str(), matrix);
  Value& known = transposed_[matrix.impl()];
  if (known.defined()) return known;
  transposed_tensors_.push_back(matrix);
  const auto stored = constant_names_.find(matrix.impl());
  if (stored != constant_names_.end())
    known = op("Transpose", {{stored->second}}, {{"perm", std::vector<int64_t>{1, 0}}});
  else
    known = constant(name, matrix.detach().t());
  return known;
}

Value Graph::named_constant(const std::string& name, const std::function<Tensor()>& make) {
  Value& known = named_[name];
  if (!known.defined()) known = constant(name, make());
  return known;
}

Value Graph::size(const Value& value, int64_t dim) { return op("Shape", {value}, {{"start", dim}, {"end", dim + 1}}); }

Value Graph::integers(const std::vector<int64_t>& values) {
  Value& known = integers_[values];
  if (!known.defined()) {
    std::string name = "integers";
    for (int64_t value : values) name += "_" + std::to_string(value);
    known = constant(name, from_vector<int64_t>(values));
  }
  return known;
}

Value Graph::scalar(int64_t value) {
  return named_constant("integer_" + std::to_string(value), [&] { return scalar_tensor(value); });
}

Value Graph::number(float value) {
  Value& known = numbers_[value];
  if (!known.defined())
    known = constant("number_" + std::to_string(value), full({}, static_cast<double>(value), DType::f32));
  return known;
}

void Graph::write(const std::function<void(const void*, size_t)>& sink) const {
  check<ValueError>(!outputs_.empty(), "onnx", "the graph has no output");
  MessageWriter graph;
  for (const Node& node : nodes_) {
    MessageWriter message;
    for (const std::string& input : node.inputs) message.bytes(1, input);
    for (const std::string& output : node.outputs) message.bytes(2, output);
    message.bytes(3, node.name).bytes(4, node.type);
    for (const auto& [name, value] : node.attributes) message.message(5, attribute(name, value));
    graph.message(1, message);
  }
  graph.bytes(2, name_);
  for (const Port& input : inputs_) graph.message(11, port(input.name, input.dtype, input.sizes));
  for (const Port& output : outputs_) graph.message(12, port(output.name, output.dtype, output.sizes));

  // Tensors are the bulk, and are copied from where they lie: their lengths come first.
  std::vector<std::string> heads;
  uint64_t graph_size = graph.text().size();
  for (const auto& [name, tensor] : constants_) {
    const MessageWriter head = tensor_head(name, tensor);
    heads.push_back(MessageWriter().length(5, head.text().size() + byte_count(tensor)).text() + head.text());
    graph_size += heads.back().size() + byte_count(tensor);
  }
  MessageWriter model;
  model.number(1, ir_version).bytes(2, "Regard").bytes(3, version);
  model.message(8, MessageWriter().bytes(1, "").number(2, opset_version));
  for (const auto& [key, value] : metadata_) model.message(14, MessageWriter().bytes(1, key).bytes(2, value));
  model.length(7, graph_size);
  check<ValueError>(model.text().size() + graph_size <= largest_file, "onnx", "the model takes ",
                    model.text().size() + graph_size, " bytes, more than the ", largest_file,
                    " that an ONNX file can hold: export parts of it, or a smaller one");

  const auto put = [&](const std::string& text) { sink(text.data(), text.size()); };
  put(model.text());
  put(graph.text());
  for (size_t i = 0; i < constants_.size(); ++i) {
    put(heads[i]);
    const Tensor dense = constants_[i].second.detach().to(cpu()).contiguous();
    sink(dense.raw_data(), byte_count(dense));
  }
}

std::string Graph::serialized() const {
  std::string bytes;
  write([&](const void* data, size_t size) { bytes.append(static_cast<const char*>(data), size); });
  return bytes;
}

void Graph::save(const std::filesystem::path& path) const {
  std::optional<AtomicFile> file;  // opened once the graph is known to be good
  write([&](const void* data, size_t size) {
    if (!file) file.emplace(path);
    file->write(data, size);
  });
  file->commit();
}

}  // namespace regard::onnx
