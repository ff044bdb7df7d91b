// The Profiler: which events there are, what they say of shapes, bytes, operations and layers, and its trace.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>
#include <thread>

#include "test_folder.hpp"

namespace profiler_test {
namespace {

using namespace regard;
using Kind = ProfilerEvent::Kind;

std::vector<ProfilerEvent> of_kind(const Profiler& profiler, Kind kind) {
  std::vector<ProfilerEvent> found;
  for (const ProfilerEvent& event : profiler.events())
    if (event.kind == kind) found.push_back(event);
  return found;
}

std::vector<ProfilerEvent> named(const Profiler& profiler, const std::string& name) {
  std::vector<ProfilerEvent> found;
  for (const ProfilerEvent& event : profiler.events())
    if (event.name == name && event.kind != Kind::kernel) found.push_back(event);
  return found;
}

ProfilerEvent only(const Profiler& profiler, const std::string& name) {
  const std::vector<ProfilerEvent> found = named(profiler, name);
  INFO("events called " << name);
  REQUIRE(found.size() == 1);
  return found.front();
}

ProfilerRow row(const std::vector<ProfilerRow>& rows, const std::string& name) {
  for (const ProfilerRow& found : rows)
    if (found.name == name) return found;
  FAIL("no row is called " << name);
  return {};
}

std::vector<ProfiledTensor> f32(std::initializer_list<Shape> shapes) {
  std::vector<ProfiledTensor> list;
  for (const Shape& shape : shapes) list.push_back({shape, DType::f32});
  return list;
}

struct Model : layers::Layer {
  layers::Linear up{3, 5}, down{5, 2, false};
  Tensor operator()(const Tensor& x) const {
    layers::LayerScope scope(*this);
    return down(relu(up(x)));
  }
  void members(layers::Members& m) override {
    m("up", up);
    m("down", down);
  }
};

}  // namespace

TEST_CASE("An op is one event, with what it was given and what it computed") {
  const Tensor x = randn({4, 3}), weight = randn({5, 3}), bias = randn({5});
  Profiler profiler;
  const Tensor y = linear(x, weight, bias);
  const Tensor z = y * 2.0;
  const Tensor positive = y > 0.0;
  profiler.stop();

  const std::vector<ProfilerEvent> events = profiler.events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].name == "linear");
  CHECK(events[0].inputs == f32({{4, 3}, {5, 3}, {5}}));
  CHECK(events[0].outputs == f32({{4, 5}}));
  CHECK(events[0].flops == 2 * 4 * 3 * 5);
  CHECK(events[0].bytes_read >= 4 * (4 * 3 + 5 * 3 + 5));
  CHECK(events[0].bytes_written >= 4 * 4 * 5);
  CHECK(events[1].name == "mul");
  CHECK(events[1].inputs == f32({{4, 5}}));
  CHECK(events[1].bytes_read == 4 * 20);
  CHECK(events[1].bytes_written == 4 * 20);
  CHECK(events[1].flops == 0);
  CHECK(events[2].name == "gt");  // no gradient: known by its kernel
  CHECK(events[2].outputs == std::vector<ProfiledTensor>{{{4, 5}, DType::boolean}});
  CHECK(events[2].bytes_written == 20);
  for (const ProfilerEvent& event : events) {
    CHECK(event.kind == Kind::op);
    CHECK(event.layer.empty());
    CHECK(event.thread == 1);
    CHECK(event.parent == -1);
    CHECK(event.duration_us > 0);
    CHECK(event.self_us == event.duration_us);
    CHECK(event.live_bytes > 0);
  }
  CHECK(events[0].begin_us + events[0].duration_us <= events[1].begin_us);
  CHECK(events[1].begin_us + events[1].duration_us <= events[2].begin_us);
}

TEST_CASE("A view is an event that takes no time and touches no byte") {
  const Tensor x = randn({4, 3});
  Profiler profiler;
  const Tensor filled = zeros({6});
  const Tensor y = x.view({2, 6}), z = filled.view({3, 2});
  profiler.stop();
  const std::vector<ProfilerEvent> views = named(profiler, "view");
  REQUIRE(views.size() == 2);
  for (const ProfilerEvent& view : views) {
    CHECK(view.duration_us == 0);
    CHECK(view.bytes_read + view.bytes_written == 0);
  }
  CHECK(views[0].outputs == f32({{2, 6}}));
  CHECK(only(profiler, "fill").outputs == f32({{6}}));  // of zeros(), not of the view
}

TEST_CASE("Expanded elements are read once") {
  const Tensor x = randn({4, 1}).expand({4, 8}), y = randn({4, 8});
  Profiler profiler;
  const Tensor z = x + y;
  profiler.stop();
  CHECK(only(profiler, "add").bytes_read == 4 * (4 + 32));
}

TEST_CASE("Rows that are taken from a table count, not the table") {
  const Tensor table = randn({1000, 4}), ids = from_vector<int64_t>({1, 2, 999}, {3});
  Profiler profiler;
  const Tensor rows = embedding(ids, table);
  profiler.stop();
  const ProfilerEvent event = only(profiler, "embedding");
  CHECK(event.bytes_written == 4 * 3 * 4);
  CHECK(event.bytes_read < 1000);
  CHECK(of_kind(profiler, Kind::op).size() <= 2);  // the check of the ids is part of it
}

TEST_CASE("Floating-point operations of matrix products, by hand") {
  const Tensor a = randn({2, 3, 4}), b = randn({4, 5}), c = randn({2, 4, 5}), u = randn({7}), v = randn({7});
  const auto flops = [](const Tensor& x, const Tensor& y) {
    Profiler profiler;
    matmul(x, y);
    double sum = 0;
    for (const ProfilerEvent& event : profiler.events()) sum += event.flops;
    return sum;
  };
  CHECK(flops(a, b) == 2 * 2 * 3 * 4 * 5);
  CHECK(flops(a, c) == 2 * 2 * 3 * 4 * 5);
  CHECK(flops(u, v) == 2 * 7);
  CHECK(flops(a.to(DType::f64), b.to(DType::f64)) == 2 * 2 * 3 * 4 * 5);
}

TEST_CASE("Floating-point operations of attention, by hand") {
  const int64_t n = 2, heads = 3, width = 4;
  const auto flops = [&](int64_t queries, int64_t keys, bool causal) {
    Tensor q = randn({n, heads, queries, width}).set_requires_grad();
    const Tensor k = randn({n, heads, keys, width}), v = randn({n, heads, keys, 6});
    Profiler profiler;
    const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = causal});
    profiler.stop();
    return only(profiler, "scaled_dot_product_attention").flops;
  };
  const auto by_hand = [&](int64_t queries, int64_t keys) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = 0; j < keys; ++j) pairs += j <= i + keys - queries ? 1 : 0;
    return static_cast<double>(2 * n * heads * pairs * (width + 6));
  };
  CHECK(flops(5, 7, false) == 2 * n * heads * 5 * 7 * (width + 6));
  for (const auto& [queries, keys] : {std::pair{1, 1}, {5, 5}, {5, 9}, {9, 5}, {1, 8}, {8, 1}, {2, 3}, {64, 64}}) {
    CAPTURE(queries, keys);
    CHECK(flops(queries, keys, true) == by_hand(queries, keys));
  }
  CHECK(flops(64, 64, true) == Approx(0.5 * flops(64, 64, false)).epsilon(0.02));
}

TEST_CASE("A backward pass shows the ops whose gradients it computes, with their layers") {
  Model model;
  model.parameters();  // tells the layers their paths
  Tensor x = randn({4, 3}).set_requires_grad();
  Profiler profiler;
  const Tensor y = model(x);
  sum(y).backward();
  profiler.stop();

  CHECK(named(profiler, "linear").size() == 2);
  CHECK(named(profiler, "linear")[0].layer == "up");
  CHECK(named(profiler, "linear")[1].layer == "down");
  const std::string root = only(profiler, "relu").layer;
  CHECK_FALSE(root.empty());
  CHECK(only(profiler, "sum").layer.empty());

  std::vector<std::string> backward;
  for (const ProfilerEvent& event : of_kind(profiler, Kind::backward)) backward.push_back(event.name);
  CHECK(backward == std::vector<std::string>{"sum backward", "linear backward", "relu backward", "linear backward"});
  const std::vector<ProfilerEvent> linears = named(profiler, "linear backward");
  CHECK(linears[0].layer == "down");
  CHECK(linears[0].inputs == f32({{4, 2}}));
  CHECK(linears[0].outputs == f32({{4, 5}, {2, 5}}));
  CHECK(linears[0].flops == 2 * 2 * 4 * 5 * 2);  // twice the forward product
  CHECK(linears[1].layer == "up");
  CHECK(linears[1].flops == 2 * 2 * 4 * 3 * 5);
  CHECK(only(profiler, "relu backward").layer == root);

  // What a gradient is made of is inside it, and in its layer.
  const std::vector<ProfilerEvent> events = profiler.events();
  int inside = 0;
  for (const ProfilerEvent& event : events) {
    if (event.parent < 0) continue;
    const ProfilerEvent& parent = events[static_cast<size_t>(event.parent)];
    CHECK(parent.begin_us <= event.begin_us);
    CHECK(event.begin_us + event.duration_us <= parent.begin_us + parent.duration_us + 1e-6);
    if (parent.kind == Kind::backward) {
      CHECK(event.layer == parent.layer);
      ++inside;
    }
  }
  CHECK(inside >= 5);

  const std::vector<ProfilerEvent> layers = of_kind(profiler, Kind::layer);
  REQUIRE(layers.size() == 3);
  CHECK(layers[0].name == root);
  CHECK(layers[1].name == "up");
  CHECK(layers[2].name == "down");
  CHECK(events[static_cast<size_t>(layers[1].parent)].name == root);
}

TEST_CASE("Sums by op and by layer") {
  Model model;
  model.parameters();
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  const Tensor x = randn({4, 3});
  Profiler profiler;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    sum(model(x)).backward();
    optimizer.step();
  }
  profiler.stop();

  const std::vector<ProfilerRow> ops = profiler.by_op();
  CHECK(row(ops, "linear").calls == 6);
  CHECK(row(ops, "linear").flops == 3 * (2 * 4 * 3 * 5 + 2 * 4 * 5 * 2));
  CHECK(row(ops, "relu").calls == 3);
  CHECK(row(ops, "linear backward").calls == 6);
  CHECK(row(ops, "sgd_step").calls == 3);  // all parameters at once
  double share = 0, total = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    share += ops[i].share;
    CHECK(ops[i].self_us <= ops[i].total_us + 1e-6);
    if (i > 0) CHECK(ops[i].self_us <= ops[i - 1].self_us);
  }
  CHECK(share == Approx(1));

  const std::vector<ProfilerRow> layers = profiler.by_layer();
  const ProfilerRow up = row(layers, "up"), down = row(layers, "down"), outside = row(layers, "");
  CHECK(layers.back().name.empty());
  CHECK(up.calls == 3);
  CHECK(up.flops == 3 * (2 + 2) * 4 * 3 * 5);  // the input needs no gradient
  CHECK(down.flops == 3 * (2 + 4) * 4 * 5 * 2);
  CHECK(up.forward_us > 0);
  CHECK(up.backward_us > 0);
  CHECK(up.total_us == Approx(up.forward_us + up.backward_us));
  CHECK(layers.front().calls == 3);  // the model itself, with all that is in it
  CHECK(layers.front().flops == up.flops + down.flops);
  CHECK(layers.front().forward_us >= up.forward_us + down.forward_us);
  CHECK(outside.calls == 0);
  for (const ProfilerRow& layer : layers) total += layer.self_us;
  CHECK(total == Approx([&] {
          double sum = 0;
          for (const ProfilerRow& op : ops) sum += op.self_us;
          return sum;
        }()));

  const std::string table = profiler.table(2);
  CAPTURE(table);
  CHECK(table.find("GFLOP/s") != std::string::npos);
  CHECK(table.find("down") != std::string::npos);
  CHECK(table.find("(no layer)") != std::string::npos);
  CHECK(table.find(std::to_string(ops.size() - 2) + " others") != std::string::npos);
}

TEST_CASE("Values and gradients are the same bits with and without a Profiler") {
  const auto train = [](bool profiled) {
    manual_seed(3);
    layers::TransformerEncoderLayer layer(16, 4, {.dropout = 0.1});
    optim::AdamW optimizer(layer.parameters());
    const Tensor x = randn({2, 5, 16});
    std::optional<Profiler> profiler;
    if (profiled) profiler.emplace();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      square(layer(x)).mean().backward();
      optimizer.step();
    }
    return layer(x);
  };
  const Tensor plain = train(false), profiled = train(true);
  CHECK(all(plain == profiled).item<bool>());
}

TEST_CASE("Nothing is recorded before, after and without a Profiler") {
  const Tensor a = randn({2, 3}), b = randn({2, 3});
  Tensor c = a + b;
  CHECK_FALSE(profiling::active());
  Profiler profiler;
  CHECK(profiler.recording());
  c = a * b;
  profiler.stop();
  CHECK_FALSE(profiler.recording());
  CHECK_FALSE(profiling::active());
  c = a - b;
  profiler.stop();  // twice does no harm
  REQUIRE(profiler.events().size() == 1);
  CHECK(profiler.events()[0].name == "mul");
  {
    Profiler next;  // the first one has ended, and keeps what it has
    c = a / b;
    CHECK(only(next, "div").inputs.size() == 2);
  }
  CHECK(profiler.events().size() == 1);
  Profiler empty;
  empty.stop();
  CHECK(empty.events().empty());
  CHECK(empty.table() == "no op was recorded\n");
}

TEST_CASE("One Profiler at a time") {
  Profiler first;
  CHECK_THROWS_WITH(Profiler(), Catch::Contains("another one records already"));
  CHECK(first.recording());
  first.stop();
  CHECK_NOTHROW(Profiler());
  CHECK_THROWS_WITH(Profiler({.most_events = 0}), Catch::Contains("most_events is 0"));
}

TEST_CASE("Too many events are counted and left out") {
  const Tensor a = randn({2, 3});
  Profiler profiler({.most_events = 4});
  for (int i = 0; i < 10; ++i) ProfilerRegion("step"), a.exp();
  profiler.stop();
  CHECK(profiler.events().size() <= 4);
  CHECK(profiler.left_out() > 0);
  CHECK(profiler.table().find("left out") != std::string::npos);
}

TEST_CASE("Regions nest, and hold the ops inside") {
  const Tensor a = randn({2, 3});
  Profiler profiler;
  {
    ProfilerRegion outer("validation");
    ProfilerRegion inner(std::string("batch 3"));
    a.exp();
  }
  profiler.stop();
  const std::vector<ProfilerEvent> events = profiler.events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].name == "validation");
  CHECK(events[0].kind == Kind::region);
  CHECK(events[1].name == "batch 3");
  CHECK(events[1].parent == 0);
  CHECK(events[2].name == "exp");
  CHECK(events[2].parent == 1);
  CHECK(events[0].bytes_written == 4 * 6);  // with what is inside
  CHECK(events[0].self_us == Approx(events[0].duration_us - events[1].duration_us));
}

TEST_CASE("A Profiler may begin and end anywhere") {
  Model model;
  model.parameters();
  const Tensor x = randn({4, 3});
  Tensor before = sum(model(x));  // this graph was made without one
  std::optional<Profiler> profiler;
  {
    layers::LayerScope scope(model.up);
    profiler.emplace();
    before.backward();
    x.exp();
  }
  {
    ProfilerRegion open("open");
    x.exp();
    CHECK(profiler->events().size() > 3);  // while it records
    profiler->stop();
  }
  CHECK(only(*profiler, "sum backward").layer.empty());
  const std::vector<ProfilerEvent> exps = named(*profiler, "exp");
  REQUIRE(exps.size() == 2);
  CHECK(exps[0].layer == "up");  // the layer that was open already
  CHECK(exps[1].layer.empty());
  const ProfilerEvent open = only(*profiler, "open");
  CHECK(open.duration_us >= exps[1].duration_us);
  profiler.reset();
  x.exp();
}

TEST_CASE("An exception leaves no scope open") {
  Model model;
  model.parameters();
  const Tensor wrong = randn({4, 7}), x = randn({4, 3}).set_requires_grad();
  Profiler profiler;
  CHECK_THROWS_AS(model(wrong), ShapeError);
  Tensor y = model(x);
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
  CHECK_THROWS_WITH(sum(y).backward(), "stop");
  x.exp();
  profiler.stop();
  const ProfilerEvent last = only(profiler, "exp");
  CHECK(last.parent == -1);
  CHECK(last.layer.empty());
  CHECK(of_kind(profiler, Kind::layer).size() == 5);  // the model, its first layer; and all three
}

TEST_CASE("Each thread has its events") {
  constexpr int count = 4, calls = 50;
  Profiler profiler;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([i] {
      Tensor x = randn({8, 8}).set_requires_grad();
      for (int call = 0; call < calls; ++call) {
        ProfilerRegion region("thread " + std::to_string(i));
        sum(x * x).backward();
      }
    });
  for (int i = 0; i < 5; ++i) profiler.events();  // reading meanwhile does no harm
  for (std::thread& thread : threads) thread.join();
  profiler.stop();
  std::map<int, int> regions;
  for (const ProfilerEvent& event : profiler.events()) {
    if (event.kind == Kind::region) ++regions[event.thread];
  }
  CHECK(regions.size() == count);
  for (const auto& [thread, number] : regions) CHECK(number == calls);
  CHECK(named(profiler, "mul backward").size() == count * calls);
}

TEST_CASE("Profilers may come and go while threads compute") {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&done] {
      Model model;
      model.parameters();
      const Tensor x = randn({4, 3});
      while (!done) {
        ProfilerRegion region("step");
        sum(model(x)).backward();
      }
    });
  for (int i = 0; i < 30; ++i) {
    Profiler profiler({.kernels = i % 2 == 0});
    for (int call = 0; call < 20; ++call) randn({2, 3}).exp();
    if (i % 3 == 0) profiler.stop();
    if (i % 5 == 0) CHECK(named(profiler, "exp").size() == 20);
    CHECK_FALSE(profiler.table().empty());
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("Kernels are shown on request, inside their op") {
  const Tensor x = randn({4, 3}), weight = randn({5, 3}), bias = randn({5});
  Profiler profiler({.kernels = true});
  linear(x, weight, bias);
  profiler.stop();
  const std::vector<ProfilerEvent> events = profiler.events();
  REQUIRE(events.size() >= 2);
  CHECK(events[0].name == "linear");
  CHECK(events[0].flops == 2 * 4 * 3 * 5);  // not twice
  double flops = 0;
  for (const ProfilerEvent& kernel : of_kind(profiler, Kind::kernel)) {
    CHECK(kernel.parent == 0);
    flops += kernel.flops;
  }
  CHECK(flops == events[0].flops);
}

TEST_CASE("Every kernel of the table is seen") {
  const Kernels& own = own_kernels(Device{});
  Profiler profiler;
  const Kernels& noted = kernels(Device{});
  constexpr size_t rows = offsetof(Kernels, widest_narrow_attention) / sizeof(void*);  // behind them are limits
  static_assert(sizeof(Kernels) % sizeof(void*) == 0);
  const auto* a = reinterpret_cast<void* const*>(&own);
  const auto* b = reinterpret_cast<void* const*>(&noted);
  for (size_t i = 0; i < rows; ++i) {
    INFO("row " << i << " of Kernels has no line in profiler_kernels.cpp");
    CHECK(a[i] != b[i]);
  }
  profiler.stop();
  CHECK(&kernels(Device{}) == &own);
}

TEST_CASE("The trace is Chrome's format") {
  const test::Folder own;
  const std::filesystem::path folder = own.path;
  Model model;
  model.parameters();
  Tensor x = randn({4, 3}).set_requires_grad();
  Profiler profiler;
  {
    ProfilerRegion region("a \"step\"\n");
    sum(model(x)).backward();
  }
  profiler.stop();
  const std::filesystem::path path = folder / "trace.json";
  profiler.write(path);

  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::map<std::string, int> categories;
  double last_memory = -1;
  bool product = false;
  for (const auto& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "C") last_memory = event.at("args").at("MiB");
    if (phase != "X") continue;
    ++categories[event.at("cat")];
    CHECK(event.at("ts").get<double>() >= 0);
    CHECK(event.at("dur").get<double>() >= 0);
    CHECK(event.at("pid") == 1);
    CHECK(event.at("tid") == 1);
    if (event.at("name") == "linear" && event.at("args").at("layer") == "up") {
      product = true;
      CHECK(event.at("args").at("inputs") == nlohmann::json({"f32 [4, 3]", "f32 [5, 3]", "f32 [5]"}));
      CHECK(event.at("args").at("outputs") == nlohmann::json({"f32 [4, 5]"}));
      CHECK(event.at("args").at("flops") == 120);
      CHECK(event.at("args").at("bytes_written") >= 80);
    }
  }
  CHECK(product);
  CHECK(last_memory >= 0);
  CHECK(categories["region"] == 1);
  CHECK(categories["layer"] == 3);
  CHECK(categories["backward"] == 4);
  CHECK(categories["op"] >= 4);
  CHECK(categories["kernel"] == 0);

  // Whole or not at all.
  for (const auto& entry : std::filesystem::directory_iterator(folder)) CHECK(entry.path() == path);
  CHECK_THROWS_AS(profiler.write(folder / "missing" / "trace.json"), FileError);
  CHECK_THROWS_WITH(profiler.write(folder), Catch::Contains(folder.string()));
}

TEST_CASE("Recomputation shows in the backward pass, in the layers it belongs to") {
  Model model;
  model.parameters();
  Tensor x = randn({4, 3}).set_requires_grad();
  Profiler profiler;
  const Tensor y = checkpoint(model, x);
  sum(y).backward();
  profiler.stop();
  CHECK(named(profiler, "linear").size() == 4);
  CHECK(named(profiler, "linear")[2].layer == "up");
  CHECK(named(profiler, "linear backward").size() == 2);
  CHECK(named(profiler, "linear backward")[0].layer == "down");
}

}  // namespace profiler_test
