// Ops without matrix products: elementwise functions, reductions, rows (softmax, norms, cross-entropy), lookups, copies
// and random numbers, on tensors of three sizes. `GB` counts what an op must read and write, each tensor once.
#include <regard/bench/suite.hpp>
#include <regard/regard.hpp>
#include <vector>

namespace {

using namespace regard;
using bench::sizes;

constexpr double element = sizeof(float);

// A body that computes on x [rows, width] and drops the result. `traffic`: tensors of x's size read and written.
void add(const std::string& name, int64_t rows, int64_t width, double traffic,
         std::function<std::function<Tensor()>(const Tensor& x)> op) {
  const double bytes = traffic * element * static_cast<double>(rows * width);
  bench::add(name + "/" + sizes({rows, width}), {.bytes = bytes}, [rows, width, op = std::move(op)] {
    const Tensor x = randn({rows, width});
    return [f = op(x)] {
      NoGrad no_grad;
      benchmark::DoNotOptimize(f().raw_data());
    };
  });
}

// The backward pass alone of y = op(x): the graph is kept from call to call.
void add_backward(const std::string& name, int64_t rows, int64_t width, double traffic,
                  std::function<Tensor(const Tensor& x)> op) {
  const double bytes = traffic * element * static_cast<double>(rows * width);
  bench::add(name + " backward/" + sizes({rows, width}), {.bytes = bytes}, [rows, width, op = std::move(op)] {
    const Tensor x = randn({rows, width}).set_requires_grad();
    const Tensor y = op(x), g = randn(y.shape());
    return [x, y, g] {
      benchmark::DoNotOptimize(grad(y, {x}, {.grad_outputs = {g}, .retain_graph = true})[0].raw_data());
    };
  });
}

void elementwise(int64_t rows, int64_t width) {
  const auto one = [&](const char* name, Tensor (*f)(const Tensor&)) {
    add(name, rows, width, 2, [f](const Tensor& x) { return [f, x] { return f(x); }; });
  };
  add("add", rows, width, 3, [](const Tensor& x) { return [x, y = randn(x.shape())] { return x + y; }; });
  add("mul number", rows, width, 2, [](const Tensor& x) { return [x] { return x * 1.5; }; });
  add("add row", rows, width, 2, [](const Tensor& x) { return [x, y = randn({x.size(1)})] { return x + y; }; });
  one("exp", exp);
  one("tanh", tanh);
  one("relu", relu);
  one("silu", silu);
  add("gelu", rows, width, 2, [](const Tensor& x) { return [x] { return gelu(x); }; });
  add("greater", rows, width, 1.25, [](const Tensor& x) { return [x] { return x > 0.0; }; });
  add("masked_fill", rows, width, 2.25,
      [](const Tensor& x) { return [x, mask = x > 0.0] { return masked_fill(x, mask, 0); }; });
  add("dropout", rows, width, 2, [](const Tensor& x) { return [x] { return dropout(x, 0.1, default_generator()); }; });
  add("randn", rows, width, 1, [](const Tensor& x) { return [shape = x.shape()] { return randn(shape); }; });
  add_backward("gelu", rows, width, 3, [](const Tensor& x) { return gelu(x); });
  add_backward("tanh", rows, width, 3, [](const Tensor& x) { return tanh(x); });
}

void reductions(int64_t rows, int64_t width) {
  add("sum", rows, width, 1, [](const Tensor& x) { return [x] { return sum(x); }; });
  add("sum rows", rows, width, 1, [](const Tensor& x) { return [x] { return sum(x, 1); }; });
  add("sum columns", rows, width, 1, [](const Tensor& x) { return [x] { return sum(x, 0); }; });
  add("max rows", rows, width, 1, [](const Tensor& x) { return [x] { return x.max(1).first; }; });
  add("var rows", rows, width, 1, [](const Tensor& x) { return [x] { return var(x, 1); }; });
}

void rows_of(int64_t rows, int64_t width) {
  add("softmax", rows, width, 2, [](const Tensor& x) { return [x] { return softmax(x, 1); }; });
  add("log_softmax", rows, width, 2, [](const Tensor& x) { return [x] { return log_softmax(x, 1); }; });
  add_backward("softmax", rows, width, 3, [](const Tensor& x) { return softmax(x, 1); });
  const auto layer = [width](const Tensor& x) { return layer_norm(x, {width}, ones({width}), zeros({width}), 1e-5); };
  const auto rms = [width](const Tensor& x) { return rms_norm(x, {width}, ones({width}), 1e-6); };
  add("layer_norm", rows, width, 2, [layer](const Tensor& x) { return [x, layer] { return layer(x); }; });
  add("rms_norm", rows, width, 2, [rms](const Tensor& x) { return [x, rms] { return rms(x); }; });
  add_backward("layer_norm", rows, width, 3, layer);
  add_backward("rms_norm", rows, width, 3, rms);
  const auto targets = [](int64_t count, int64_t classes) { return randint(0, classes, {count}); };
  add("cross_entropy", rows, width, 1,
      [=](const Tensor& x) { return [x, t = targets(rows, width)] { return cross_entropy(x, t); }; });
  add_backward("cross_entropy", rows, width, 2,
               [=](const Tensor& x) { return cross_entropy(x, targets(rows, width)); });
}

void lookups(int64_t rows, int64_t width) {
  const auto ids = [rows] { return randint(0, rows, {rows}); };
  add("embedding", rows, width, 2, [=](const Tensor& x) { return [x, i = ids()] { return embedding(i, x); }; });
  add_backward("embedding", rows, width, 2, [=](const Tensor& x) { return embedding(ids(), x); });
  add("gather", rows, width, 2, [=](const Tensor& x) {
    return [x, i = randint(0, width, {rows, width})] { return gather(x, 1, i); };
  });
}

void copies(int64_t rows, int64_t width) {
  add("clone", rows, width, 2, [](const Tensor& x) { return [x] { return x.clone(); }; });
  add("transpose copy", rows, width, 2, [](const Tensor& x) { return [x] { return x.t().contiguous(); }; });
  add("split heads copy", rows, width, 2, [=](const Tensor& x) {  // [T, H, D] -> [H, T, D]
    return [heads = x.view({rows, 4, width / 4}).transpose(0, 1)] { return heads.contiguous(); };
  });
  add("cat", rows, width, 4, [](const Tensor& x) { return [x] { return cat({x, x}, 1); }; });
  add("cast to bf16", rows, width, 1.5, [](const Tensor& x) { return [x] { return x.to(DType::bf16); }; });
}

void optimizer(int64_t rows, int64_t width) {
  const double bytes = 7 * element * static_cast<double>(rows * width);  // p, m, v read and written, g read
  bench::add("AdamW step/" + sizes({rows, width}), {.bytes = bytes}, [rows, width] {
    Tensor parameter = randn({rows, width}).set_requires_grad();
    sum(parameter * 0.1).backward();
    auto adam = std::make_shared<optim::AdamW>(Tensors{parameter}, optim::AdamWOptions{.lr = 1e-6});
    return [adam] { adam->step(); };
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{16, 32}, {768, 128}, {2048, 1536}}) {
    elementwise(rows, width);
    reductions(rows, width);
    rows_of(rows, width);
    lookups(rows, width);
    copies(rows, width);
    optimizer(rows, width);
  }
  return bench::run(argc, argv);
}
