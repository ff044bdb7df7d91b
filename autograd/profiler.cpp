// Recording: what ops, nodes and layers leave with the Profiler that is alive.
//
// Kernels are seen through a table of them that stands in for the CPU's. An op says that it is done once it has
// computed its outputs, by record(): it then claims the kernels that wrote these, and becomes one event. A kernel that
// no op claims (comparisons, random numbers, optimizers, what is done in place) is an event under its own name.
#include <regard/autograd/profiler.hpp>

#include <algorithm>
#include <utility>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/counters.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/profiler_recorder.hpp>

namespace regard {

namespace profiling {

std::atomic<bool> recording{false};

namespace {

std::mutex current_mutex;
// The one that records, if any. Without a destructor, for a Profiler may be a static object and outlive it.
Recorder* current = nullptr;
std::atomic<uint64_t> current_number{0};  // counts them; tells a thread that its record is of an earlier one

struct Here {
  uint64_t number = 0;
  std::shared_ptr<Recorder> recorder;
  std::shared_ptr<ThreadRecord> record;
};

// This thread's record; null where there is nothing to record any more.
Here* here() {
  thread_local Here mine;
  if (mine.number == current_number.load(std::memory_order_acquire)) return mine.recorder ? &mine : nullptr;
  const std::lock_guard lock(current_mutex);
  mine = {current_number.load(std::memory_order_relaxed), current ? current->shared_from_this() : nullptr, nullptr};
  if (!current) return nullptr;
  mine.record = std::make_shared<ThreadRecord>();
  const std::lock_guard list(current->mutex);
  current->threads.push_back(mine.record);
  mine.record->number = static_cast<int>(current->threads.size());
  return &mine;
}

// The layer that computes now. Where the Profiler began inside of a layer, that one has to be asked.
uint32_t layer_now(Here& at) {
  if (!at.record->open.empty()) return at.record->open.back().layer;
  const std::string path = ErrorScope::innermost();
  return path.empty() ? 0 : at.recorder->layer_number(path, 0);
}

void enter(Here& at, const void* key, const Event& event) {
  at.record->kernels.clear();  // they are no part of an op to come
  at.record->open.push_back({key, at.recorder->add(*at.record, event), event.layer});
}

// A scope that was open before the Profiler began is not there. One that ends before those inside of it ends them, too.
void leave(Here& at, const void* key) {
  ThreadRecord& record = *at.record;
  record.kernels.clear();
  if (std::none_of(record.open.begin(), record.open.end(), [key](const auto& scope) { return scope.key == key; }))
    return;
  for (bool found = false; !found; record.open.pop_back()) {
    found = record.open.back().key == key;
    const size_t event = record.open.back().event;
    if (event == ThreadRecord::none) continue;
    record.events[event].end = at.recorder->now();
    record.events[event].live = counters::bytes.load(std::memory_order_relaxed);
  }
}

void enter(const void* key, Kind kind, const char* name) {
  Here* at = here();
  if (!at) return;
  const std::lock_guard lock(at->record->mutex);
  Event event;
  event.kind = kind;
  event.name = at->record->name_number(name);
  event.layer = layer_now(*at);
  event.begin = at->recorder->now();
  event.end = -1;
  enter(*at, key, event);
}

void leave(const void* key) noexcept {
  try {
    Here* at = here();
    if (!at) return;
    const std::lock_guard lock(at->record->mutex);
    leave(*at, key);
  } catch (const std::exception&) {  // no memory for a thread's first record: there is nothing to close
  }
}

Memory memory_of(const Tensor& x) {
  const char* data = static_cast<const char*>(x.impl()->storage->data());
  return {data, data + x.impl()->storage->bytes()};
}

// Repeated elements, which have stride 0, are read once.
int64_t bytes_of(const Tensor& x) {
  int64_t count = 1;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (x.strides()[d] != 0 || x.shape()[d] == 0) count *= x.shape()[d];
  return count * element_size(x.dtype());
}

void note_tensor(ThreadRecord& record, const Tensor& x, uint32_t& count) {
  if (!x.defined()) return;
  record.tensors.push_back({x.shape(), x.dtype()});
  ++count;
}

bool meets(const auto& some, const auto& others) {
  return std::any_of(some.begin(), some.end(), [&](const Memory& a) {
    return std::any_of(others.begin(), others.end(), [&](const Memory& b) { return a.meets(b); });
  });
}

using Memories = boost::container::small_vector<Memory, 8>;

// Which kernels computed `outputs`: those that wrote them, or something that such a kernel read, but for what the op
// was given. Those that only looked at an input, right before, count as well: they checked it.
boost::container::small_vector<size_t, 8> kernels_of(const ThreadRecord& record, std::span<Tensor* const> outputs,
                                                     std::span<const Tensor* const> inputs,
                                                     std::span<const Tensor* const> saved) {
  boost::container::small_vector<size_t, 8> claimed;
  if (record.kernels.empty()) return claimed;
  Memories wanted, given;
  for (const Tensor* input : inputs)
    if (input->defined()) given.push_back(memory_of(*input));
  for (const Tensor* output : outputs) {
    if (!output->defined()) continue;
    const Memory memory = memory_of(*output);
    if (!meets(Memories{memory}, given)) wanted.push_back(memory);
  }
  for (const Tensor* kept : saved)
    if (kept->defined() && !meets(Memories{memory_of(*kept)}, wanted)) given.push_back(memory_of(*kept));
  for (size_t i = record.kernels.size(); i-- > 0;) {
    const OpenKernel& kernel = record.kernels[i];
    const bool wrote = meets(kernel.writes, wanted);
    const bool checked = kernel.writes.empty() && !claimed.empty() && claimed.back() == i + 1;
    if (!wrote && !checked) continue;
    claimed.push_back(i);
    for (const Memory& read : kernel.reads)
      if (!meets(Memories{read}, given)) wanted.push_back(read);
  }
  return claimed;
}

}  // namespace

// ---- The records

uint32_t ThreadRecord::name_number(std::string_view name) {
  const auto [entry, fresh] = name_numbers.try_emplace(std::string(name), static_cast<uint32_t>(names.size()));
  if (fresh) names.emplace_back(name);
  return entry->second;
}

size_t Recorder::add(ThreadRecord& record, const Event& event) {
  if (count.fetch_add(1, std::memory_order_relaxed) >= options.most_events) {
    left_out.fetch_add(1, std::memory_order_relaxed);
    return ThreadRecord::none;
  }
  record.events.push_back(event);
  return record.events.size() - 1;
}

uint32_t Recorder::layer_number(const std::string& path, uint32_t outer) {
  const std::lock_guard lock(mutex);
  if (layers[outer].path == path) return outer;  // a layer that calls a function of its own
  const auto [entry, fresh] =
      layer_numbers.try_emplace(std::to_string(outer) + ' ' + path, static_cast<uint32_t>(layers.size()));
  if (fresh) layers.push_back({path, outer});
  return entry->second;
}

// ---- Kernels

void KernelNote::reads(const Tensor& x) {
  if (x.defined()) reads({x.shape(), x.dtype()}, bytes_of(x), memory_of(x));
}
void KernelNote::writes(const Tensor& x) {
  if (x.defined()) writes({x.shape(), x.dtype()}, bytes_of(x), memory_of(x));
}
void KernelNote::reads(const ProfiledTensor& what, int64_t bytes, Memory where) {
  inputs_.push_back(what);
  read_ += bytes;
  open_.reads.push_back(where);
}
void KernelNote::writes(const ProfiledTensor& what, int64_t bytes, Memory where) {
  outputs_.push_back(what);
  written_ += bytes;
  open_.writes.push_back(where);
}
void KernelNote::reads_at_most(int64_t bytes) { read_ = std::min(read_, bytes); }

void KernelNote::begin() {
  Here* at = here();
  if (!at) return;
  recorder_ = at->recorder.get();
  begin_ = at->recorder->now();
}

KernelNote::~KernelNote() {
  Here* at = recorder_ ? here() : nullptr;
  if (!at || at->recorder.get() != recorder_) return;  // another Profiler has begun meanwhile
  try {
    Event event;
    event.end = at->recorder->now();
    event.begin = begin_;
    event.live = counters::bytes.load(std::memory_order_relaxed);
    event.kind = Kind::kernel;
    event.read = read_;
    event.written = written_;
    event.flops = flops_;
    const std::lock_guard lock(at->record->mutex);
    ThreadRecord& record = *at->record;
    event.name = record.name_number(name_);
    event.layer = layer_now(*at);
    event.first_tensor = record.tensors.size();
    event.outputs = static_cast<uint32_t>(outputs_.size());
    event.inputs = static_cast<uint32_t>(inputs_.size());
    record.tensors.insert(record.tensors.end(), outputs_.begin(), outputs_.end());
    record.tensors.insert(record.tensors.end(), inputs_.begin(), inputs_.end());
    open_.event = at->recorder->add(record, event);
    if (open_.event != ThreadRecord::none) record.kernels.push_back(std::move(open_));
  } catch (const std::exception&) {  // no memory for it: one event less
  }
}

// ---- Ops, nodes, layers and regions

void op_done(const char* name, std::span<Tensor* const> outputs, std::span<const Tensor* const> inputs,
             std::span<const Tensor* const> saved) {
  Here* at = here();
  if (!at) return;
  const std::lock_guard lock(at->record->mutex);
  ThreadRecord& record = *at->record;
  Event event;
  event.begin = event.end = at->recorder->now();
  event.live = counters::bytes.load(std::memory_order_relaxed);
  const auto claimed = kernels_of(record, outputs, inputs, saved);
  if (!claimed.empty()) {
    const Event& first = record.events[record.kernels[claimed.back()].event];
    const Event& last = record.events[record.kernels[claimed.front()].event];
    event.begin = first.begin;
    event.end = last.end;
    event.live = last.live;
  }
  for (size_t i : claimed) {
    Event& kernel = record.events[record.kernels[i].event];
    kernel.part_of_op = true;
    event.read += kernel.read;
    event.written += kernel.written;
    event.flops += kernel.flops;
  }
  if (!claimed.empty()) record.kernels.clear();
  event.name = record.name_number(name);
  event.layer = layer_now(*at);
  event.first_tensor = record.tensors.size();
  for (const Tensor* output : outputs) note_tensor(record, *output, event.outputs);
  for (const Tensor* input : inputs) note_tensor(record, *input, event.inputs);
  at->recorder->add(record, event);
}

void node_made(const Node& node) {
  Here* at = here();
  if (!at) return;
  const std::lock_guard own(at->record->mutex);
  const uint32_t layer = layer_now(*at);
  const std::lock_guard lock(at->recorder->mutex);
  at->recorder->nodes[&node] = {node.sequence(), layer};
}

void layer_entered(const ErrorScope& scope) {
  Here* at = here();
  if (!at) return;
  const std::string path = ErrorScope::innermost();
  const std::lock_guard lock(at->record->mutex);
  ThreadRecord& record = *at->record;
  Event event;
  event.kind = Kind::layer;
  event.name = record.name_number(path);
  event.layer = at->recorder->layer_number(path, record.open.empty() ? 0 : record.open.back().layer);
  event.begin = at->recorder->now();
  event.end = -1;
  enter(*at, &scope, event);
}

void layer_left(const ErrorScope& scope) { leave(&scope); }

void NodeSpan::enter(Node& node) {
  Here* at = here();
  if (!at) return;
  Event event;
  event.kind = Kind::backward;
  event.end = -1;
  {
    const std::lock_guard lock(at->recorder->mutex);
    const auto found = at->recorder->nodes.find(&node);
    // The number tells a node from a later one in its place.
    if (found != at->recorder->nodes.end() && found->second.sequence == node.sequence())
      event.layer = found->second.layer;
  }
  const std::lock_guard lock(at->record->mutex);
  ThreadRecord& record = *at->record;
  event.name = record.name_number(std::string(node.name()) + " backward");
  event.first_tensor = record.tensors.size();
  for (const Edge& edge : node.edges()) {
    if (!edge.needed()) continue;
    if (edge.leaf)
      record.tensors.push_back({edge.leaf->shape, edge.leaf->dtype});
    else
      record.tensors.push_back(
          {edge.node->output(edge.output_index).shape, edge.node->output(edge.output_index).dtype});
    ++event.outputs;
  }
  for (uint32_t i = 0; i < node.output_count(); ++i) {
    record.tensors.push_back({node.output(i).shape, node.output(i).dtype});
    ++event.inputs;
  }
  event.begin = at->recorder->now();
  profiling::enter(*at, this, event);
}

void NodeSpan::leave() { profiling::leave(this); }

}  // namespace profiling

void ProfilerRegion::enter(const char* name) { profiling::enter(this, profiling::Kind::region, name); }
void ProfilerRegion::leave() { profiling::leave(this); }

// ---- Profiler

Profiler::Profiler(const ProfilerOptions& options) {
  using namespace profiling;
  check<ValueError>(options.most_events > 0, "Profiler", "most_events is ", options.most_events,
                    "; it must be at least 1");
  const std::lock_guard lock(current_mutex);
  check<ValueError>(current == nullptr, "Profiler", "another one records already: one at a time, so stop() it first");
  recorder_ = std::make_shared<Recorder>(options);
  current = recorder_.get();
  current_number.fetch_add(1, std::memory_order_release);
  for (const Device::Kind kind : {Device::Kind::cpu, Device::Kind::cuda}) use_kernels(kind, noted_kernels(kind));
  profiling::recording = true;
}

Profiler::~Profiler() {
  stop();
  // A thread lets go of its record only when it meets the next Profiler: the events are freed here.
  // One lock at a time: a thread that is still at its last event takes its record's first, and then the recorder's.
  std::vector<std::shared_ptr<profiling::ThreadRecord>> threads;
  {
    const std::lock_guard lock(recorder_->mutex);
    threads = recorder_->threads;
    recorder_->nodes = {};
  }
  for (const auto& record : threads) {
    const std::lock_guard own(record->mutex);
    record->events = {};
    record->tensors = {};
    record->kernels = {};
    record->open = {};
  }
}

void Profiler::stop() {
  using namespace profiling;
  const std::lock_guard lock(current_mutex);
  if (current != recorder_.get()) return;
  profiling::recording = false;
  for (const Device::Kind kind : {Device::Kind::cpu, Device::Kind::cuda}) use_kernels(kind, nullptr);
  recorder_->stopped = recorder_->now();
  current = nullptr;
  current_number.fetch_add(1, std::memory_order_release);
}

bool Profiler::recording() const { return recorder_->stopped < 0; }
int64_t Profiler::left_out() const { return recorder_->left_out; }

std::vector<ProfilerEvent> Profiler::events() const { return collect(*recorder_).events; }
std::vector<ProfilerRow> Profiler::by_op() const { return rows_by_op(collect(*recorder_)); }
std::vector<ProfilerRow> Profiler::by_layer() const { return rows_by_layer(collect(*recorder_)); }
std::string Profiler::table(int64_t most_ops) const { return table_text(collect(*recorder_), most_ops, left_out()); }
void Profiler::write(const std::filesystem::path& path) const { write_trace(collect(*recorder_), left_out(), path); }

}  // namespace regard
