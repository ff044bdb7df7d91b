// Attention on the CPU: tensors to problems, and the work to threads, by shapes alone.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <regard/autograd/backend/cpu/attention_tiles.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>

namespace regard::cpu_backend {

namespace {

template <class T>
HeadRows<T> rows_of(const Tensor& x) {
  if (!x.defined()) return {};
  const Strides& s = x.strides();
  return {static_cast<T*>(x.raw_data()), s[0], s[1], s[2], s[3]};
}

MaskKind kind_of(const Tensor& mask) {
  if (!mask.defined()) return MaskKind::none;
  if (is_floating(mask.dtype())) return MaskKind::floating;
  return mask.dtype() == DType::boolean ? MaskKind::boolean : MaskKind::integer;
}

template <class T>
AttentionProblem<T> make_problem(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                                 const AttentionSettings& settings) {
  AttentionProblem<T> p{};
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.queries = q.size(2);
  p.keys = k.size(2);
  p.width = q.size(3);
  p.value_width = v.size(3);
  p.group = k.size(1) > 0 ? q.size(1) / k.size(1) : 1;
  p.q = rows_of<const T>(q);
  p.k = rows_of<const T>(k);
  p.v = rows_of<const T>(v);
  p.y = rows_of<T>(y);
  p.statistics = static_cast<T*>(statistics.raw_data());
  p.mask_kind = kind_of(mask);
  p.mask = rows_of<const char>(mask);
  p.key_mask_kind = kind_of(key_mask);
  if (key_mask.defined()) {
    p.key_mask = static_cast<const char*>(key_mask.raw_data());
    p.key_mask_batch = key_mask.strides()[0];
    p.key_mask_key = key_mask.strides()[1];
  }
  p.slopes = alibi.defined() ? static_cast<const double*>(alibi.raw_data()) : nullptr;
  p.scale = static_cast<T>(settings.scale);
  p.causal = settings.causal;
  p.drops = settings.dropout > 0;
  p.drop_threshold = static_cast<uint32_t>(std::ceil(settings.dropout * 0x1p24));
  p.keep_scale = static_cast<T>(settings.dropout < 1 ? 1 / (1 - settings.dropout) : 0);
  p.seed = settings.seed;
  p.offset = settings.offset;
  return p;
}

// A query's work, in multiply-adds; the exponential of a weight counts as some, and so does what a tile takes in any
// case.
template <class T>
double work_of_query(const AttentionProblem<T>& p, double products) {
  const double dropout = p.drops ? 100 : 0, causal = p.causal && p.queries == p.keys ? 0.5 : 1;
  const double a_weight = products * static_cast<double>(p.width + p.value_width) + 20 + dropout;
  return (causal * static_cast<double>(p.keys) * a_weight + 50 + 12000 / static_cast<double>(p.queries)) *
         (sizeof(T) / sizeof(float));
}

template <class T>
void zero_rows(const HeadRows<T>& x, int64_t n, int64_t h, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) std::memset(x.at(n, h) + i * x.row, 0, static_cast<size_t>(width) * sizeof(T));
}

template <class T>
void add_rows(const HeadRows<T>& x, const HeadRows<T>& part, int64_t n, int64_t h, int64_t first, int64_t last,
              int64_t width) {
  for (int64_t i = first; i < last; ++i) {
    T* to = x.at(n, h) + i * x.row;
    const T* from = part.at(n, h) + i * part.row;
    for (int64_t j = 0; j < width; ++j) to[j] += from[j];
  }
}

// to [rows, width] = from
template <class T>
void copy_rows(const HeadRows<T>& to, const HeadRows<T>& from, int64_t n, int64_t h, int64_t first, int64_t last,
               int64_t width) {
  for (int64_t i = first; i < last; ++i)
    std::memcpy(to.at(n, h) + i * to.row, from.at(n, h) + i * from.row, static_cast<size_t>(width) * sizeof(T));
}

// Chunks keep threads busy, and none is woken for less than about 20 microseconds of work.
template <class F>
void share_attention(int64_t tasks, double work_a_task, F f) {
  constexpr double short_work = 200'000, worth_waking = 3'000'000;
  const double all = static_cast<double>(tasks) * work_a_task;
  if (all < 2 * short_work) return f(int64_t{0}, tasks);
  const double enough = std::max(1.0, std::ceil(short_work / work_a_task));
  parallel_for_short(tasks, static_cast<int64_t>(enough), all >= worth_waking, f);
}

// Gradients of keys and values are sums over the queries of every head that uses them, in a fixed order. With few heads
// of keys the queries are split in parts, by heads and then by ranges, each of which adds up dk and dv of its own: the
// first in place, the others beside. Gradients that are to lie over the keys and values are added up beside altogether,
// and copied once nothing reads these any more: after the head where it is one part, else at the end.
template <class T>
void run_backward(const AttentionProblem<T>& p) {
  const int64_t key_heads = p.heads / p.group, batch_heads = p.batch * key_heads;
  if (batch_heads == 0) return;
  const int64_t tile = attention_tile_queries<T>();
  const int64_t wanted = (8 + batch_heads - 1) / batch_heads;
  const int64_t splits = std::min(p.group, wanted);
  const int64_t ranges = std::clamp<int64_t>(std::min((wanted + splits - 1) / splits, p.queries / (4 * tile)), 1, 8);
  const int64_t range_queries = ((p.queries + ranges - 1) / ranges + tile - 1) / tile * tile;
  const int64_t parts = splits * ranges;
  const bool over_keys = p.dk && p.dk.data == p.k.data, over_values = p.dv && p.dv.data == p.v.data;
  Tensor dk_parts, dv_parts;
  const auto make_parts = [&](const HeadRows<T>& x, Tensor& memory, int64_t width, bool all) {
    if (x && parts > 1) memory = empty({parts - (all ? 0 : 1), p.batch, key_heads, p.keys, width}, dtype_of<T>());
  };
  make_parts(p.dk, dk_parts, p.width, over_keys);
  make_parts(p.dv, dv_parts, p.value_width, over_values);
  const auto part_of = [&](const HeadRows<T>& x, const Tensor& memory, int64_t part, int64_t width,
                           bool all) -> HeadRows<T> {
    if (!x || parts == 1 || (part == 0 && !all)) return x;
    const int64_t head = p.keys * width, batch = key_heads * head;
    return {static_cast<T*>(memory.raw_data()) + (part - (all ? 0 : 1)) * p.batch * batch, batch, head, width, 1};
  };
  const auto with_parts = [&](int64_t part) {
    AttentionProblem<T> own = p;
    own.dk = part_of(p.dk, dk_parts, part, p.width, over_keys);
    own.dv = part_of(p.dv, dv_parts, part, p.value_width, over_values);
    return own;
  };
  const double work = work_of_query(p, 2.5) * static_cast<double>(p.queries * p.group) / static_cast<double>(parts);
  share_attention(batch_heads * parts, work, [&](int64_t begin, int64_t end) {
    Tensor dk_head, dv_head;  // [S, D], [S, Dv]
    if (over_keys && parts == 1) dk_head = empty({p.keys, p.width}, dtype_of<T>());
    if (over_values && parts == 1) dv_head = empty({p.keys, p.value_width}, dtype_of<T>());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = parts == 1 ? task : task / parts, n = head / key_heads, key_head = head - n * key_heads;
      const int64_t part_of_head = task - head * parts, split = splits == 1 ? 0 : part_of_head / ranges;
      const int64_t range = (split + 1) * ranges - 1 - part_of_head;  // the last first: the longest where causal
      AttentionProblem<T> part = with_parts(split * ranges + range);
      if (dk_head.defined()) part.dk = {static_cast<T*>(dk_head.raw_data()), 0, 0, p.width, 1};
      if (dv_head.defined()) part.dv = {static_cast<T*>(dv_head.raw_data()), 0, 0, p.value_width, 1};
      const int64_t first = std::min(p.queries, range * range_queries);
      const int64_t last = std::min(p.queries, first + range_queries);
      const bool fresh = first < last && p.visible_keys(last - 1) == p.keys && p.key_mask_kind == MaskKind::none &&
                         (p.mask_kind == MaskKind::none || p.mask_kind == MaskKind::floating);
      if (part.dk && !fresh) zero_rows(part.dk, n, key_head, p.keys, p.width);
      if (part.dv && !fresh) zero_rows(part.dv, n, key_head, p.keys, p.value_width);
      const int64_t first_member = splits == 1 ? 0 : split * p.group / splits;
      const int64_t end_member = splits == 1 ? p.group : (split + 1) * p.group / splits;
      for (int64_t member = first_member; first < last && member < end_member; ++member)
        attention_backward(part, n, key_head * p.group + member, first, last, fresh && member == first_member);
      if (dk_head.defined()) copy_rows(p.dk, part.dk, n, key_head, 0, p.keys, p.width);
      if (dv_head.defined()) copy_rows(p.dv, part.dv, n, key_head, 0, p.keys, p.value_width);
    }
  });
  if (parts == 1) return;
  constexpr int64_t rows = 128;
  const int64_t pieces = (p.keys + rows - 1) / rows;
  const double add_work = static_cast<double>(parts * rows * (p.width + p.value_width));
  share_attention(batch_heads * pieces, add_work, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / pieces, n = head / key_heads, key_head = head % key_heads;
      const int64_t first = task % pieces * rows, last = std::min(p.keys, first + rows);
      const AttentionProblem<T> first_part = with_parts(0);
      if (over_keys) copy_rows(p.dk, first_part.dk, n, key_head, first, last, p.width);
      if (over_values) copy_rows(p.dv, first_part.dv, n, key_head, first, last, p.value_width);
      for (int64_t other = 1; other < parts; ++other) {
        const AttentionProblem<T> part = with_parts(other);
        if (p.dk) add_rows(p.dk, part.dk, n, key_head, first, last, p.width);
        if (p.dv) add_rows(p.dv, part.dv, n, key_head, first, last, p.value_width);
      }
    }
  });
}

}  // namespace

void attention(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings) {
  visit_compute(q.dtype(), [&]<class T>(T) {
    const AttentionProblem<T> p = make_problem<T>(y, statistics, q, k, v, mask, key_mask, alibi, settings);
    const int64_t tile = attention_tile_queries<T>(), tasks = p.batch * p.heads * ((p.queries + tile - 1) / tile);
    if (tasks == 0) return;
    const double work = work_of_query(p, 1) * static_cast<double>(std::min(tile, p.queries));
    share_attention(tasks, work, [&p](int64_t begin, int64_t end) { attention_forward(p, begin, end); });
  });
}

void attention_delta(const Tensor& delta, const Tensor& dy, const Tensor& y) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    AttentionProblem<T> p{};
    p.heads = y.size(1);
    p.queries = y.size(2);
    p.value_width = y.size(3);
    p.y = rows_of<T>(y);
    p.dy = rows_of<const T>(dy);
    parallel_for(
        delta.numel(), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, p.value_width)),
        [&](int64_t begin, int64_t end) { attention_row_delta(static_cast<T*>(delta.raw_data()), p, begin, end); });
  });
}

void attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                    const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings) {
  visit_compute(q.dtype(), [&]<class T>(T) {
    const bool has_delta = y.dim() == 3;
    AttentionProblem<T> p =
        make_problem<T>(has_delta ? Tensor() : y, statistics, q, k, v, mask, key_mask, alibi, settings);
    if (has_delta) p.delta = static_cast<const T*>(y.raw_data());
    p.dy = rows_of<const T>(dy);
    p.dq = rows_of<T>(dq);
    p.dk = rows_of<T>(dk);
    p.dv = rows_of<T>(dv);
    run_backward(p);
  });
}

}  // namespace regard::cpu_backend
