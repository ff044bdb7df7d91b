// Regard's side of the comparison (see README.md): reads commands from standard input, a line of JSON each, and answers
// each with a line of JSON on standard output. The peers' side, worker.py, speaks the same.
//
//   {"do": "hello"}                                   its name and version
//   {"do": "open", "work": "gpt", ...sizes, "save": PATH, "check": N}
//                                                     makes a model; saves its weights and inputs for the peers to
//                                                     load; takes N steps and answers with numbers to compare
//   {"do": "run", "steps": N}                         takes N steps: seconds, and the loss of each for a training run
//   {"do": "memory", "steps": N}                      the same; KiB resident before, and at most while they ran; of
//                                                     what is done on a GPU, KiB of its memory
//   {"do": "close"}                                   frees the model
//
// "open" takes "device": "cuda" for gpt, attention and sgemm, and "precision": f32 (else), tf32, or bf16, which is
// autocast; of sgemm, the dtype of its matrices.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regard/autograd/autocast.hpp>
#include <regard/autograd/backend/allocator.hpp>
#include <regard/autograd/backend/large_blocks.hpp>
#include <regard/autograd/version.hpp>
#include <regard/bench/compare/plain_step.hpp>
#include <regard/regard.hpp>
#include <sstream>
#include <string>

namespace {

using namespace regard;
using Json = nlohmann::json;

constexpr double check_lr = 1e-3;
// While steps are timed the rate is next to nothing: thousands of steps on one batch would end in denormal numbers.
constexpr double timed_lr = 1e-6;

// What products are computed in, for the length of a forward pass.
struct Precision {
  bool tf32 = false;
  std::optional<DType> dtype;

  explicit Precision(const Json& options) {
    const std::string name = options.value("precision", "f32");
    if (name == "bf16")
      dtype = DType::bf16;
    else if (name == "tf32")
      tf32 = true;
    else if (name != "f32")
      throw std::runtime_error("no precision is called " + name);
  }
  template <class F>
  auto operator()(const F& forward) const {
    const AutocastScope cast(dtype);
    std::optional<MatmulPrecisionScope> products;
    if (tf32) products.emplace(MatmulPrecision::tf32);
    return forward();
  }
};

struct Work {
  Device device = cpu();

  Work() = default;
  explicit Work(const Json& options) : device(parse_device(options.value("device", "cpu"))) {}
  virtual ~Work() = default;
  virtual void step() = 0;
  virtual void save(const std::string& /*path*/) { throw std::runtime_error("this work has nothing to save"); }
  virtual Json check(int steps) {
    for (int i = 0; i < steps; ++i) step();
    return Json::array();
  }
  virtual Json results() { return Json::object(); }  // of the steps since it was last asked
};

bench::GptSizes gpt_sizes(const Json& options) {
  return {.batch = options.at("batch"),
          .length = options.at("length"),
          .vocabulary = options.at("vocabulary"),
          .width = options.at("width"),
          .heads = options.at("heads"),
          .depth = options.at("depth"),
          .positions = options.value("positions", int64_t{0}),
          .tied = options.value("tied", false),
          .bias = options.value("bias", true)};
}

struct GptStep : Work {
  bench::GptSizes sizes;
  bench::Gpt model;
  optim::AdamW optimizer;
  Tensor ids, targets;
  bool in_backward;
  Precision precision;
  Tensor last;  // the loss

  explicit GptStep(const Json& options)
      : Work(options),
        sizes(gpt_sizes(options)),
        model(made(sizes, device)),
        optimizer(model.parameters(), {.lr = check_lr}),
        ids(randint(0, sizes.vocabulary, {sizes.batch, sizes.length}).to(device)),
        targets(randint(0, sizes.vocabulary, {sizes.batch, sizes.length}).to(device)),
        in_backward(options.value("step in backward", false)),
        precision(options) {
    optimizer.step_in_backward(in_backward);
    if (options.contains("kept bytes")) set_kept_large_bytes(options.at("kept bytes"));
  }

  static bench::Gpt made(const bench::GptSizes& sizes, Device device) {
    bench::Gpt model(sizes);
    model.to(device);
    return model;
  }
  void step() override {
    const Tensor loss = precision([&] { return model.loss(ids, targets); });
    optimizer.zero_grad();
    loss.backward();
    if (!in_backward) optimizer.step();
    last = loss.detach();
    if (device == cpu()) last.item<float>();  // a GPU is not waited for in each step
  }
  void save(const std::string& path) override {
    StateDict all = model.state_dict();
    all["ids"] = ids;
    all["targets"] = targets;
    save_safetensors(path, all);
  }
  Json check(int steps) override {
    Json losses = Json::array();
    for (int i = 0; i < steps; ++i) {
      step();
      losses.push_back(last.item<float>());
    }
    optimizer.set_lr(timed_lr);
    return losses;
  }
};

// The same step without the engine.
struct PlainStep : Work {
  GptStep engine;
  bench::PlainGpt plain;
  float last = 0;

  explicit PlainStep(const Json& options) : engine(options), plain(engine.sizes, engine.model.state_dict()) {
    plain.set_lr(check_lr);
  }
  void step() override { last = plain.step(engine.ids.data<int64_t>(), engine.targets.data<int64_t>()); }
  Json check(int steps) override {
    Json losses = Json::array();
    for (int i = 0; i < steps; ++i) {
      step();
      losses.push_back(last);
    }
    plain.set_lr(timed_lr);
    return losses;
  }
};

// Multi-head attention, forward and backward, with the gradient of its input.
struct AttentionStep : Work {
  layers::MultiHeadAttention layer;
  Tensor x, gradient, y;
  bool causal;
  Precision precision;

  explicit AttentionStep(const Json& options)
      : Work(options),
        layer(options.at("width"), options.at("heads")),
        causal(options.value("causal", false)),
        precision(options) {
    layer.to(device);
    const int64_t batch = options.at("batch"), length = options.at("length"), width = options.at("width");
    const Shape shape{batch, length, width};
    x = randn(shape).to(device).set_requires_grad();
    gradient = randn(shape).to(device);
  }
  void step() override {
    layer.zero_grad();
    x.zero_grad();
    y = {};
    y = precision([&] { return layer(x, {.mask = {}, .key_mask = {}, .causal = causal}); });
    if (gradient.dtype() != y.dtype()) gradient = gradient.to(y.dtype());
    y.backward(gradient);
  }
  void save(const std::string& path) override {
    StateDict all = layer.state_dict();
    all["x"] = x.detach();
    all["gradient"] = gradient;
    save_safetensors(path, all);
  }
  Json check(int steps) override {
    for (int i = 0; i < steps; ++i) step();
    if (steps == 0) return Json::array();
    return {(y.detach() * gradient).to(DType::f32).sum().item<float>(), x.grad().norm().item<float>(),
            layer.query.weight.grad().norm().item<float>()};
  }
};

// Training of a character model as nanoGPT's train.py does it: warm-up and cosine, weights decayed and vectors not,
// gradients clipped at 1.
struct CharacterTraining : Work {
  bench::GptSizes sizes;
  bench::Gpt model;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<optim::WarmupCosine> schedule;
  std::string text;
  std::vector<int64_t> starts;
  size_t at = 0;
  Json losses = Json::array();

  explicit CharacterTraining(const Json& options) : sizes(gpt_sizes(options)), model(sizes) {
    Tensors decayed, rest;
    for (const Tensor& parameter : model.parameters()) (parameter.dim() == 2 ? decayed : rest).push_back(parameter);
    const optim::AdamWOptions with{.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0.1};
    const optim::AdamWOptions without{.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0};
    optimizer = std::make_unique<optim::AdamW>(
        std::vector<optim::ParameterGroup<optim::AdamWOptions>>{{decayed, with}, {rest, without}});
    schedule = std::make_unique<optim::WarmupCosine>(
        *optimizer,
        optim::WarmupCosineOptions{.warmup_steps = 100, .total_steps = options.at("steps"), .min_lr = 1e-4});
    text = read(options.at("text"));
    const std::string bytes = read(options.at("starts"));
    starts.resize(bytes.size() / sizeof(int64_t));
    std::copy_n(bytes.data(), starts.size() * sizeof(int64_t), reinterpret_cast<char*>(starts.data()));
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream all;
    all << file.rdbuf();
    if (!file || all.str().empty()) throw std::runtime_error("cannot read " + path);
    return all.str();
  }
  void step() override {
    std::vector<int64_t> ids, targets;
    for (int64_t b = 0; b < sizes.batch; ++b, ++at) {
      for (int64_t t = 0; t < sizes.length; ++t) {
        const auto place = static_cast<size_t>(starts.at(at) + t);
        ids.push_back(static_cast<unsigned char>(text.at(place)));
        targets.push_back(static_cast<unsigned char>(text.at(place + 1)));
      }
    }
    const Tensor loss =
        model.loss(from_vector(ids, {sizes.batch, sizes.length}), from_vector(targets, {sizes.batch, sizes.length}));
    optimizer->zero_grad();
    loss.backward();
    optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer->step();
    schedule->step();
    losses.push_back(loss.item<float>());
  }
  void save(const std::string& path) override { save_safetensors(path, model.state_dict()); }
  Json results() override { return {{"losses", std::exchange(losses, Json::array())}}; }
};

// An op on tiny tensors, recorded, its result freed.
struct TinyAdd : Work {
  Tensor a = randn({2, 3}).set_requires_grad(), b = randn({2, 3});
  void step() override { const Tensor c = a + b; }
};

// Square matrix product: what the machine can do.
struct SquareProduct : Work {
  int64_t n;
  Tensor a, b;
  bool tf32;
  explicit SquareProduct(const Json& options) : Work(options), n(options.at("size")) {
    const Precision precision(options);
    const DType dtype = precision.dtype.value_or(DType::f32);
    a = randn({n, n}).to(device).to(dtype);
    b = randn({n, n}).to(device).to(dtype);
    tf32 = precision.tf32;
  }
  void step() override {
    std::optional<MatmulPrecisionScope> products;
    if (tf32) products.emplace(MatmulPrecision::tf32);
    const Tensor c = matmul(a, b);
  }
};

std::unique_ptr<Work> make_work(const Json& options) {
  manual_seed(1);
  const std::string work = options.at("work");
  if (work == "gpt") return std::make_unique<GptStep>(options);
  if (work == "plain gpt") return std::make_unique<PlainStep>(options);
  if (work == "attention") return std::make_unique<AttentionStep>(options);
  if (work == "characters") return std::make_unique<CharacterTraining>(options);
  if (work == "tiny add") return std::make_unique<TinyAdd>();
  if (work == "sgemm") return std::make_unique<SquareProduct>(options);
  throw std::runtime_error("no work is called " + work);
}

int64_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  throw std::runtime_error("/proc/self/status has no " + field);
}

// After this VmHWM counts afresh, where the system allows it.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

struct Worker {
  std::unique_ptr<Work> work;

  double timed_steps(int64_t steps) {
    if (!work) throw std::runtime_error("nothing is open");
    synchronize(work->device);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) work->step();
    synchronize(work->device);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  Json answer(const Json& command) {
    const std::string what = command.at("do");
    if (what == "hello") return {{"name", "Regard"}, {"version", version}, {"computing", cpu_report()}};
    if (what == "close") {
      work.reset();
      empty_cache();
      return Json::object();
    }
    if (what == "open") {
      work.reset();
      work = make_work(command);
      if (command.contains("save")) work->save(command.at("save"));
      return {{"check", work->check(command.value("check", 0))}};
    }
    if (what == "run") {
      const double seconds = timed_steps(command.at("steps"));
      Json reply = work->results();
      reply["seconds"] = seconds;
      return reply;
    }
    if (what == "memory" && work && work->device != cpu()) {
      const Device device = work->device;
      timed_steps(1);  // the state of its optimizer is there
      reset_cuda_peak_memory(device);
      const int64_t before = cuda_memory_stats(device).allocated;
      timed_steps(command.at("steps"));
      return {{"before_kib", before >> 10}, {"peak_kib", cuda_memory_stats(device).peak >> 10}, {"reset", true}};
    }
    if (what == "memory") {
      const bool reset = reset_peak();
      const int64_t before = status_kib("VmRSS");
      timed_steps(command.at("steps"));
      return {{"before_kib", before}, {"peak_kib", status_kib("VmHWM")}, {"reset", reset}};
    }
    throw std::runtime_error("no command is called " + what);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: regard_worker THREADS\n", stderr);
    return 2;
  }
  set_num_threads(std::stoi(argv[1]));
  Worker worker;
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      reply = worker.answer(Json::parse(line));
    } catch (const std::exception& error) {
      reply = {{"error", error.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
