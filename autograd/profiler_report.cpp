// What a Profiler shows: a table, and a trace in Chrome's format.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <regard/autograd/file.hpp>
#include <regard/autograd/profiler_recorder.hpp>

namespace regard::profiling {

namespace {

constexpr size_t widest_name = 48;

std::string padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : text + std::string(width - text.size(), ' ');
}

// The end of a long path tells more than its beginning.
std::string shortened(const std::string& name) {
  return name.size() <= widest_name ? name : "..." + name.substr(name.size() - widest_name + 3);
}

template <class... Numbers>
std::string formatted(const char* format, Numbers... numbers) {
  char line[256];
  std::snprintf(line, sizeof line, format, numbers...);
  return line;
}

// Three digits behind the point, which is a point in every locale.
std::string number(double value) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, 3).ptr};
}

std::string rate(double amount, double time_us) {  // in thousand millions a second
  return amount > 0 && time_us > 0 ? formatted("%9.1f", 1e-3 * amount / time_us) : std::string(8, ' ') + "-";
}

std::string heading(const char* first, size_t width, const char* rest) { return padded(first, width) + rest + "\n"; }

size_t width_of(const std::vector<ProfilerRow>& rows, size_t count, size_t least) {
  for (size_t i = 0; i < count; ++i) least = std::max(least, shortened(rows[i].name).size());
  return least;
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_list(const std::vector<ProfiledTensor>& tensors) {
  std::string text = "[";
  for (const ProfiledTensor& tensor : tensors) {
    if (text.size() > 1) text += ',';
    text += std::string("\"") + to_string(tensor.dtype) + ' ' + to_string(tensor.shape) + '"';
  }
  return text + "]";
}

const char* category(Kind kind) {
  switch (kind) {
    case Kind::op:
      return "op";
    case Kind::backward:
      return "backward";
    case Kind::layer:
      return "layer";
    case Kind::region:
      return "region";
    case Kind::kernel:
      return "kernel";
  }
  return "";
}

std::string trace_line(const ProfilerEvent& event) {
  std::string line = "{\"name\":" + json_text(event.name) + ",\"cat\":\"" + category(event.kind) +
                     "\",\"ph\":\"X\",\"ts\":" + number(event.begin_us) + ",\"dur\":" + number(event.duration_us) +
                     ",\"pid\":1,\"tid\":" + std::to_string(event.thread) + ",\"args\":{";
  line += "\"layer\":" + json_text(event.layer);
  if (!event.inputs.empty()) line += ",\"inputs\":" + json_list(event.inputs);
  if (!event.outputs.empty()) line += ",\"outputs\":" + json_list(event.outputs);
  line += ",\"bytes_read\":" + std::to_string(event.bytes_read) +
          ",\"bytes_written\":" + std::to_string(event.bytes_written) + formatted(",\"flops\":%.0f", event.flops);
  if (event.flops > 0 && event.duration_us > 0)
    line += ",\"gflops_per_second\":" + number(1e-3 * event.flops / event.duration_us);
  return line + "}}";
}

std::string metadata(const char* what, int thread, const std::string& name) {
  return std::string("{\"name\":\"") + what + "\",\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(thread) +
         ",\"args\":{\"name\":" + json_text(name) + "}}";
}

}  // namespace

std::string table_text(const Collected& all, int64_t most_ops, int64_t left_out) {
  const std::vector<ProfilerRow> ops = rows_by_op(all), layers = rows_by_layer(all);
  if (ops.empty()) return "no op was recorded\n";
  const size_t count = std::min(ops.size(), static_cast<size_t>(std::max<int64_t>(1, most_ops)));
  size_t width = width_of(ops, count, 10);
  double first = INFINITY, last = 0, self = 0;
  int64_t calls = 0;
  for (const ProfilerEvent& event : all.events) {
    first = std::min(first, event.begin_us);
    last = std::max(last, event.begin_us + event.duration_us);
  }
  for (const ProfilerRow& row : ops) {
    self += row.self_us;
    calls += row.calls;
  }
  std::string text = heading("op", width, "     calls   total ms    self ms   share  GFLOP/s     GB/s");
  for (size_t i = 0; i < count; ++i) {
    const ProfilerRow& row = ops[i];
    text += padded(shortened(row.name), width) +
            formatted(" %9lld %10.3f %10.3f %6.1f%%", static_cast<long long>(row.calls), 1e-3 * row.total_us,
                      1e-3 * row.self_us, 100 * row.share) +
            rate(row.flops, row.total_us) + rate(row.bytes, row.total_us) + "\n";
  }
  if (count < ops.size()) {
    double rest = 0;
    int64_t rest_calls = 0;
    for (size_t i = count; i < ops.size(); ++i) {
      rest += ops[i].self_us;
      rest_calls += ops[i].calls;
    }
    text += padded(std::to_string(ops.size() - count) + " others", width) +
            formatted(" %9lld %10s %10.3f %6.1f%%\n", static_cast<long long>(rest_calls), "", 1e-3 * rest,
                      self > 0 ? 100 * rest / self : 0.0);
  }

  width = width_of(layers, layers.size(), 10);
  const std::string outside = "(no layer)";
  text += "\n" + heading("layer", width, "     calls forward ms backward ms    self ms   share  GFLOP/s     GB/s");
  for (const ProfilerRow& row : layers)
    text += padded(row.name.empty() ? outside : shortened(row.name), width) +
            formatted(" %9lld %10.3f %11.3f %10.3f %6.1f%%", static_cast<long long>(row.calls), 1e-3 * row.forward_us,
                      1e-3 * row.backward_us, 1e-3 * row.self_us, 100 * row.share) +
            rate(row.flops, row.total_us) + rate(row.bytes, row.total_us) + "\n";

  text += formatted("\n%lld calls of ops in %.3f ms, of which %.3f ms in ops", static_cast<long long>(calls),
                    1e-3 * (last - first), 1e-3 * self);
  if (left_out > 0) text += "; " + std::to_string(left_out) + " later events were left out";
  return text + "\n";
}

void write_trace(const Collected& all, int64_t left_out, const std::filesystem::path& path) {
  AtomicFile file(path);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"left_out\":" + std::to_string(left_out) +
                     "},\"traceEvents\":[\n" + metadata("process_name", 0, "regard");
  int threads = 0;
  for (const ProfilerEvent& event : all.events) threads = std::max(threads, event.thread);
  for (int thread = 1; thread <= threads; ++thread)
    text += ",\n" + metadata("thread_name", thread, "thread " + std::to_string(thread));
  for (const ProfilerEvent& event : all.events) {
    text += ",\n" + trace_line(event);
    if (event.kind == Kind::op)
      text += ",\n{\"name\":\"memory\",\"ph\":\"C\",\"ts\":" + number(event.begin_us + event.duration_us) +
              ",\"pid\":1,\"args\":{\"MiB\":" + number(static_cast<double>(event.live_bytes) / (1 << 20)) + "}}";
    if (text.size() > (1U << 20)) {
      file.write(text);
      text.clear();
    }
  }
  file.write(text + "\n]}\n");
  file.commit();
}

}  // namespace regard::profiling
