// The reader itself, and what it makes of files that are wrong.
#include <catch2/catch.hpp>

#include <cstring>
#include <set>
#include <string_view>

#include <regard/autograd/ops.hpp>
#include <regard/layers/onnx/graph.hpp>

#include "onnx_operators.hpp"

namespace onnx_reader {

using namespace regard;  // NOLINT(google-build-using-namespace)

namespace {

// ---- Protocol buffers

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint, or of four bytes
  std::string_view bytes;  // of a field with a length
};

class Message {
 public:
  explicit Message(std::string_view text) : text_(text) {}
  bool next(Field& field) {
    if (text_.empty()) return false;
    const uint64_t tag = varint();
    field = {static_cast<uint32_t>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        return true;
      case 2:
        field.bytes = take(varint());
        return true;
      case 5: {
        const std::string_view four = take(4);
        for (size_t i = 0; i < 4; ++i)
          field.value |= static_cast<uint64_t>(static_cast<unsigned char>(four[i])) << (8 * i);
        return true;
      }
      default:
        wrong("wire type " + std::to_string(tag & 7));
    }
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    wrong("a number of more than ten bytes");
  }
  std::string_view take(uint64_t count) {
    if (count > text_.size()) wrong("ends in the middle of a field");
    const std::string_view part = text_.substr(0, count);
    text_.remove_prefix(count);
    return part;
  }
  std::string_view text_;
};

template <class F>
void each(std::string_view bytes, const F& f) {
  Message message(bytes);
  for (Field field; message.next(field);) f(field);
}

int64_t whole(const Field& field) { return static_cast<int64_t>(field.value); }

Node read_node(std::string_view bytes) {
  Node node;
  each(bytes, [&](const Field& field) {
    const std::string text(field.bytes);
    if (field.number == 1) node.inputs.push_back(text);
    if (field.number == 2) node.outputs.push_back(text);
    if (field.number == 3) node.name = text;
    if (field.number == 4) node.type = text;
    if (field.number != 5) return;
    std::string name;
    int64_t type = 0, integer = 0;
    float real = 0;
    std::vector<int64_t> list;
    each(field.bytes, [&](const Field& part) {
      if (part.number == 1) name = part.bytes;
      if (part.number == 2) {
        const auto bits = static_cast<uint32_t>(part.value);
        std::memcpy(&real, &bits, 4);
      }
      if (part.number == 3) integer = whole(part);
      if (part.number == 8) list.push_back(whole(part));
      if (part.number == 20) type = whole(part);
    });
    if (type == 1)
      node.reals[name] = real;
    else if (type == 2)
      node.integers[name] = integer;
    else if (type == 7)
      node.lists[name] = list;
    else
      wrong("attribute '" + name + "' of type " + std::to_string(type));
  });
  return node;
}

std::pair<std::string, Tensor> read_tensor(std::string_view bytes) {
  std::vector<int64_t> sizes;
  int64_t type = 0;
  std::string name;
  std::string_view data;
  each(bytes, [&](const Field& field) {
    if (field.number == 1) sizes.push_back(whole(field));
    if (field.number == 2) type = whole(field);
    if (field.number == 8) name = field.bytes;
    if (field.number == 9) data = field.bytes;
  });
  const DType dtype = type == 1 ? DType::f32 : type == 7 ? DType::i64 : type == 9 ? DType::boolean : DType::f64;
  if (type != 1 && type != 7 && type != 9 && type != 11) wrong("'" + name + "' of type " + std::to_string(type));
  Tensor tensor = empty(Shape(sizes), dtype);
  if (data.size() != static_cast<size_t>(tensor.numel() * element_size(dtype)))
    wrong("'" + name + "' holds " + std::to_string(data.size()) + " bytes");
  if (!data.empty()) std::memcpy(tensor.raw_data(), data.data(), data.size());
  return {name, tensor};
}

Port read_port(std::string_view bytes) {
  Port port;
  each(bytes, [&](const Field& field) {
    if (field.number == 1) port.name = field.bytes;
    if (field.number != 2) return;
    each(field.bytes, [&](const Field& kind) {
      if (kind.number != 1) wrong("'" + port.name + "' is no tensor");
      each(kind.bytes, [&](const Field& part) {
        if (part.number == 1) port.type = whole(part);
        if (part.number == 2)
          each(part.bytes, [&](const Field& dimension) {
            each(dimension.bytes, [&](const Field& size) {
              port.sizes.push_back(size.number == 1 ? std::to_string(whole(size)) : std::string(size.bytes));
            });
          });
      });
    });
  });
  return port;
}

void check_order(const Model& model) {
  std::set<std::string> known;
  const auto add = [&](const std::string& name) {
    if (!known.insert(name).second) wrong("'" + name + "' is there twice");
  };
  for (const Port& input : model.inputs) add(input.name);
  for (const auto& [name, tensor] : model.constants) add(name);
  std::set<std::string> nodes;
  for (const Node& node : model.nodes) {
    if (!nodes.insert(node.name).second) wrong("two nodes are named '" + node.name + "'");
    for (const std::string& input : node.inputs)
      if (!input.empty() && !known.contains(input)) wrong("'" + input + "' is not computed before " + node.name);
    for (const std::string& output : node.outputs) add(output);
  }
  for (const Port& output : model.outputs)
    if (!known.contains(output.name)) wrong("output '" + output.name + "' is never computed");
}

}  // namespace

Model read(const std::string& bytes) {
  Model model;
  each(bytes, [&](const Field& field) {
    if (field.number == 1) model.ir_version = whole(field);
    if (field.number == 2) model.producer = field.bytes;
    if (field.number == 8)
      each(field.bytes, [&](const Field& part) {
        if (part.number == 2) model.opset = whole(part);
      });
    if (field.number == 14) {
      std::pair<std::string, std::string> entry;
      each(field.bytes, [&](const Field& part) { (part.number == 1 ? entry.first : entry.second) = part.bytes; });
      model.metadata.insert(entry);
    }
    if (field.number != 7) return;
    each(field.bytes, [&](const Field& part) {
      if (part.number == 1) model.nodes.push_back(read_node(part.bytes));
      if (part.number == 5 && !model.constants.insert(read_tensor(part.bytes)).second) wrong("two constants of a name");
      if (part.number == 11) model.inputs.push_back(read_port(part.bytes));
      if (part.number == 12) model.outputs.push_back(read_port(part.bytes));
    });
  });
  check_order(model);
  return model;
}

std::map<std::string, Tensor> run(const Model& model, const std::map<std::string, Tensor>& inputs) {
  std::map<std::string, Tensor> values = model.constants;
  std::map<std::string, int64_t> chosen;  // sizes with a name: one number each
  for (const Port& input : model.inputs) {
    const auto given = inputs.find(input.name);
    if (given == inputs.end()) wrong("input '" + input.name + "' is not given");
    const Tensor& tensor = given->second;
    if (tensor.dim() != static_cast<int64_t>(input.sizes.size())) wrong("input '" + input.name + "' of another shape");
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      const std::string& size = input.sizes[static_cast<size_t>(i)];
      const bool number = size.find_first_not_of("0123456789") == std::string::npos;
      if (number ? std::stoll(size) != tensor.size(i)
                 : chosen.try_emplace(size, tensor.size(i)).first->second != tensor.size(i))
        wrong("input '" + input.name + "' of another size: " + size);
    }
    values[input.name] = tensor;
  }
  for (const Node& node : model.nodes) {
    Values in;
    for (const std::string& name : node.inputs) in.push_back(name.empty() ? Tensor() : values.at(name));
    values[node.outputs.at(0)] = compute(node, in);
  }
  std::map<std::string, Tensor> outputs;
  for (const Port& output : model.outputs) outputs[output.name] = values.at(output.name);
  return outputs;
}

}  // namespace onnx_reader

using Catch::Matchers::Contains;

TEST_CASE("onnx reader: a graph is read as it was built, and computed") {
  regard::onnx::Graph graph("small");
  const auto x = graph.input("x", regard::DType::f32, {"batch", int64_t{2}});
  const auto w = graph.constant("w", regard::from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3}));
  const auto y = graph.op("MatMul", {x, w});
  graph.output("y", graph.op("Add", {y, graph.number(0.5F)}), regard::DType::f32, {"batch", int64_t{3}});
  graph.set_metadata("config", "{}");
  const std::string bytes = graph.serialized();
  const onnx_reader::Model model = onnx_reader::read(bytes);
  CHECK(model.ir_version == 8);
  CHECK(model.opset == 17);
  CHECK(model.producer == "Regard");
  CHECK(model.metadata.at("config") == "{}");
  CHECK(model.constants.at("w").to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(model.inputs.at(0).sizes == std::vector<std::string>{"batch", "2"});
  CHECK(model.outputs.at(0).sizes == std::vector<std::string>{"batch", "3"});
  const auto out = onnx_reader::run(model, {{"x", regard::from_vector<float>({1, 0, 0, 1, 1, 1}, {3, 2})}});
  CHECK(out.at("y").to_vector<float>() == std::vector<float>{1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 5.5, 7.5, 9.5});

  CHECK_THROWS_WITH(onnx_reader::run(model, {}), Contains("input 'x' is not given"));
  CHECK_THROWS_WITH(onnx_reader::run(model, {{"x", regard::ones({3, 1})}}), Contains("another size: 2"));
  CHECK_THROWS_WITH(onnx_reader::read(bytes.substr(0, bytes.size() - 1)), Contains("ends in the middle"));
  regard::onnx::Graph early;
  early.output("y", early.op("Relu", {{"later"}}), regard::DType::f32, {});
  CHECK_THROWS_WITH(onnx_reader::read(early.serialized()), Contains("'later' is not computed before Relu"));
}
