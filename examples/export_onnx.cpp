// Writes a trained model as an ONNX file, for other runtimes: what train_digits, train_language_model and
// train_translation trained, a GPT-2 folder, or a folder of a sentence encoder.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/digits_options.hpp>
#include <regard/examples/common/language_run.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/translation_model.hpp>
#include <regard/layers/models/sentence_encoder.hpp>
#include <regard/layers/onnx/models.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace examples;
namespace fs = std::filesystem;

namespace {

using regard::Device;
using regard::DType;
using regard::Tensor;
using regard::onnx::Graph;
using Tensors = std::map<std::string, Tensor>;

struct Settings {
  std::string checkpoint;
  std::string output;
  bool sample = false;
  std::optional<std::string> device;
};

// A graph, and an input with Regard's output to compare a runtime's with.
struct Export {
  std::string suffix;  // of the file's name, where a model makes several
  Graph graph;
  Tensors inputs, outputs;
};

Tensor some_ids(int64_t vocabulary, int64_t length) {
  regard::Generator generator(1);
  return randint(0, vocabulary, {2, length}, DType::i64, generator);
}

// The second row has a token less, so that the mask matters.
Tensor some_mask(int64_t length) {
  Tensor mask = regard::ones({2, length}, DType::i64);
  if (length > 1) mask[1][length - 1].fill_(0);
  return mask;
}

std::vector<Export> export_digits(const fs::path& folder, Device device) {
  regard::layers::VisionTransformer model = read_digits_run(folder);
  Graph graph = regard::onnx::graph_of(model);
  model.to(device);
  regard::Generator generator(1);
  const auto& options = model.options;
  const Tensor images =
      rand({2, options.channels, options.image_height, options.image_width}, DType::f32, generator).to(device);
  return {
      {"", std::move(graph), {{"images", images}}, {{"logits", model(images)}, {"features", model.features(images)}}}};
}

std::vector<Export> export_translation(const fs::path& folder, Device device) {
  regard::layers::EncoderDecoder model = read_translator(folder).model;
  Graph encoder = regard::onnx::encoder_graph_of(model), decoder = regard::onnx::decoder_graph_of(model);
  model.to(device);
  const int64_t length = std::min<int64_t>(model.options.max_source, 6);
  const Tensor source = some_ids(model.options.source_vocabulary, length).to(device);
  const Tensor mask = some_mask(length).to(device);
  const Tensor target =
      some_ids(model.options.target_vocabulary, std::min<int64_t>(model.options.max_target, 5)).to(device);
  const Tensor memory = model.encode(source, mask);
  return {{"-encoder", std::move(encoder), {{"source_ids", source}, {"source_mask", mask}}, {{"memory", memory}}},
          {"-decoder",
           std::move(decoder),
           {{"target_ids", target}, {"memory", memory}, {"source_mask", mask}},
           {{"logits", model.decode(target, memory, mask)}}}};
}

std::vector<Export> export_sentences(const fs::path& folder, Device device) {
  auto encoder = regard::layers::SentenceEncoder::from_folder(folder);
  Graph graph = regard::onnx::graph_of(encoder);
  encoder.to(device);
  const int64_t length = std::min<int64_t>(encoder.options.longest, 7);
  const Tensor ids = some_ids(encoder.bert.options.vocabulary, length).to(device), mask = some_mask(length).to(device);
  const Tensor types = regard::zeros({2, length}, {DType::i64, device});
  return {{"",
           std::move(graph),
           {{"input_ids", ids}, {"attention_mask", mask}, {"token_type_ids", types}},
           {{"sentence_embedding", encoder(ids, mask, types)}}}};
}

std::vector<Export> export_language_model(const fs::path& folder, Device device) {
  regard::layers::GPT model = load_language_model(folder).model;
  Graph graph = regard::onnx::graph_of(model);
  model.to(device);
  const Tensor ids = some_ids(model.options.vocabulary, std::min<int64_t>(model.options.context, 9)).to(device);
  return {{"", std::move(graph), {{"input_ids", ids}}, {{"logits", model(ids)}}}};
}

std::vector<Export> export_model(const fs::path& folder, Device device) {
  const fs::path file = folder / "config.json";
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw UsageError("checkpoint", folder.string() + " is no folder");
  if (!fs::exists(file, error))
    return export_language_model(folder, device);  // a checkpoint of its run, or an error that says
  const nlohmann::ordered_json config = read_json_file(file.string());
  if (config.value("program", "") == "train_digits") return export_digits(folder, device);
  if (config.contains("source_vocabulary")) return export_translation(folder, device);
  if (config.value("model_type", "") == "bert") return export_sentences(folder, device);
  return export_language_model(folder, device);
}

void save(const Settings& settings, const Export& part) {
  fs::path path = settings.output;
  if (!part.suffix.empty()) path.replace_filename(path.stem().string() + part.suffix + path.extension().string());
  part.graph.save(path);
  std::cout << path.string() << ": inputs";
  for (const auto& [name, tensor] : part.inputs) std::cout << " " << name;
  std::cout << ", outputs";
  for (const auto& [name, tensor] : part.outputs) std::cout << " " << name;
  std::cout << "\n";
  if (!settings.sample) return;
  regard::StateDict sample;
  for (const auto& [name, tensor] : part.inputs) sample["input." + name] = tensor;
  for (const auto& [name, tensor] : part.outputs) sample["output." + name] = tensor.detach();
  const fs::path beside = fs::path(path).replace_extension(".safetensors");
  save_safetensors(beside, sample);
  std::cout << beside.string() << ": an input, and what Regard makes of it\n";
}

int run(int argc, char** argv) {
  Settings settings;
  Options line(
      "export_onnx",
      "Writes a trained model as ONNX, a file that other runtimes load. Sizes of batch and sequence are chosen "
      "there. A translation model makes two files, FILE-encoder and FILE-decoder.");
  line.text("checkpoint", settings.checkpoint,
            "the folder of a run of train_digits, train_language_model or train_translation, of a GPT-2 model, or of a "
            "sentence encoder (config.json, model.safetensors, vocab.txt)",
            "FOLDER");
  line.text("output", settings.output, "the file to write; model.onnx, for example", "FILE");
  line.flag("sample", settings.sample,
            "write FILE.safetensors, too: an input (input.NAME) and the output that Regard gives for it (output.NAME), "
            "to check a runtime with");
  line.device(settings.device);
  if (!line.parse(argc, argv)) return 0;
  if (settings.checkpoint.empty()) throw UsageError("checkpoint", "is needed: the folder of a model");
  if (settings.output.empty()) throw UsageError("output", "is needed: the file to write");
  if (settings.sample && fs::path(settings.output).extension() == ".safetensors")
    throw UsageError("output", "ends in .safetensors, where the sample is to be; .onnx is usual");
  const regard::NoGrad no_grad;
  const Device device = device_named(settings.device.value_or("cpu"));
  for (const Export& part : export_model(settings.checkpoint, device)) save(settings, part);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("export_onnx", argc, argv, run); }
