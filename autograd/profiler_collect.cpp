// What was recorded as a tree: which event is inside which, and sums over ops and layers.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include <regard/autograd/profiler_recorder.hpp>

namespace regard::profiling {

namespace {

constexpr double us = 1e-3;  // of a nanosecond

// Of events with the same begin and end, the outer one first.
int depth_of(Kind kind) { return kind == Kind::kernel ? 2 : kind == Kind::op ? 1 : 0; }

void add_thread(Collected& all, const ThreadRecord& record, int64_t now, bool kernels) {
  std::vector<Event> events = record.events;
  for (Event& event : events) {
    if (event.end < event.begin) event.end = std::max(now, event.begin);  // not over yet
    if (event.kind == Kind::kernel && !event.part_of_op) event.kind = Kind::op;
  }
  std::vector<size_t> order(events.size());
  std::iota(order.begin(), order.end(), 0);
  if (!kernels) std::erase_if(order, [&](size_t i) { return events[i].kind == Kind::kernel; });
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    const Event &a = events[i], &b = events[j];
    if (a.begin != b.begin) return a.begin < b.begin;
    return a.end != b.end ? a.end > b.end : depth_of(a.kind) < depth_of(b.kind);
  });
  struct Outer {
    int64_t event, end;
  };
  std::vector<Outer> around;
  for (size_t i : order) {
    const Event& from = events[i];
    ProfilerEvent event;
    event.kind = from.kind;
    event.name = record.names[from.name];
    event.layer = all.places[from.layer].path;
    event.thread = record.number;
    event.begin_us = us * static_cast<double>(from.begin);
    event.duration_us = event.self_us = us * static_cast<double>(from.end - from.begin);
    const auto tensors = record.tensors.begin() + static_cast<std::ptrdiff_t>(from.first_tensor);
    event.outputs.assign(tensors, tensors + from.outputs);
    event.inputs.assign(tensors + from.outputs, tensors + from.outputs + from.inputs);
    event.bytes_read = from.read;
    event.bytes_written = from.written;
    event.flops = from.flops;
    event.live_bytes = from.live;
    while (!around.empty() && around.back().end < from.end) around.pop_back();
    if (!around.empty()) event.parent = around.back().event;
    around.push_back({static_cast<int64_t>(all.events.size()), from.end});
    all.events.push_back(std::move(event));
    all.layers.push_back(from.layer);
  }
}

bool counts(const ProfilerEvent& event) { return event.kind == Kind::op || event.kind == Kind::backward; }

// Whether an event around this one has a property.
template <class Property>
bool inside(const Collected& all, const ProfilerEvent& event, Property property) {
  for (int64_t at = event.parent; at >= 0; at = all.events[static_cast<size_t>(at)].parent)
    if (property(all.events[static_cast<size_t>(at)])) return true;
  return false;
}

double time_in_ops(const Collected& all) {
  double sum = 0;
  for (const ProfilerEvent& event : all.events)
    if (counts(event)) sum += event.self_us;
  return sum;
}

// Rows by name, in the order in which they are first asked for.
class Rows {
 public:
  ProfilerRow& operator[](const std::string& name) {
    const auto [entry, fresh] = numbers_.try_emplace(name, rows_.size());
    if (fresh) rows_.push_back({.name = name});
    return rows_[entry->second];
  }
  std::vector<ProfilerRow> take(double whole) {
    for (ProfilerRow& row : rows_) row.share = whole > 0 ? row.self_us / whole : 0;
    return std::move(rows_);
  }

 private:
  std::map<std::string, size_t> numbers_;
  std::vector<ProfilerRow> rows_;
};

void add_amounts(ProfilerRow& row, const ProfilerEvent& event) {
  row.flops += event.flops;
  row.bytes += static_cast<double>(event.bytes_read + event.bytes_written);
}

}  // namespace

Collected collect(Recorder& recorder) {
  Collected all;
  const int64_t stopped = recorder.stopped;
  const int64_t now = stopped < 0 ? recorder.now() : stopped;
  std::vector<std::shared_ptr<ThreadRecord>> threads;
  {
    const std::lock_guard lock(recorder.mutex);
    threads = recorder.threads;
  }
  for (const auto& record : threads) {
    const std::lock_guard lock(record->mutex);
    {
      const std::lock_guard list(recorder.mutex);
      all.places = recorder.layers;  // every layer that this thread's events name is there by now
    }
    add_thread(all, *record, now, recorder.options.kernels);
  }
  if (all.places.empty()) all.places.push_back({});
  // What is inside comes after what is around it.
  for (size_t i = all.events.size(); i-- > 0;) {
    const ProfilerEvent& event = all.events[i];
    if (event.parent < 0 || event.kind == Kind::kernel) continue;
    ProfilerEvent& parent = all.events[static_cast<size_t>(event.parent)];
    parent.self_us -= event.duration_us;
    parent.bytes_read += event.bytes_read;
    parent.bytes_written += event.bytes_written;
    parent.flops += event.flops;
  }
  return all;
}

std::vector<ProfilerRow> rows_by_op(const Collected& all) {
  Rows rows;
  for (const ProfilerEvent& event : all.events) {
    if (!counts(event)) continue;
    ProfilerRow& row = rows[event.name];
    ++row.calls;
    row.total_us += event.duration_us;
    row.self_us += event.self_us;
    add_amounts(row, event);
  }
  std::vector<ProfilerRow> list = rows.take(time_in_ops(all));
  std::stable_sort(list.begin(), list.end(),
                   [](const ProfilerRow& a, const ProfilerRow& b) { return a.self_us > b.self_us; });
  return list;
}

std::vector<ProfilerRow> rows_by_layer(const Collected& all) {
  Rows rows;
  const auto is_backward = [](const ProfilerEvent& event) { return event.kind == Kind::backward; };
  for (size_t i = 0; i < all.events.size(); ++i) {
    const ProfilerEvent& event = all.events[i];
    if (event.kind == Kind::layer) {
      ProfilerRow& row = rows[event.layer];
      ++row.calls;
      const auto same = [&](const ProfilerEvent& outer) {
        return outer.kind == Kind::layer && outer.layer == event.layer;
      };
      if (!inside(all, event, is_backward) && !inside(all, event, same)) row.forward_us += event.duration_us;
    }
    if (!counts(event)) continue;
    rows[event.layer].self_us += event.self_us;
    if (inside(all, event, counts)) continue;
    // This and all that is inside it, for the layer and those around it, each once.
    std::vector<std::string> seen;
    uint32_t place = all.layers[i];
    do {
      const std::string& path = all.places[place].path;
      if (std::find(seen.begin(), seen.end(), path) == seen.end()) {
        ProfilerRow& row = rows[path];
        add_amounts(row, event);
        if (event.kind == Kind::backward)
          row.backward_us += event.duration_us;
        else if (path.empty())
          row.forward_us += event.duration_us;
        seen.push_back(path);
      }
      if (place == 0) break;
      place = all.places[place].outer;
    } while (place != 0);
  }
  std::vector<ProfilerRow> list = rows.take(time_in_ops(all));
  for (ProfilerRow& row : list) row.total_us = row.forward_us + row.backward_us;
  std::stable_partition(list.begin(), list.end(), [](const ProfilerRow& row) { return !row.name.empty(); });
  return list;
}

}  // namespace regard::profiling
