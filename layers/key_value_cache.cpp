#include <regard/layers/key_value_cache.hpp>

#include <algorithm>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::layers {

namespace {

constexpr const char* name = "key-value cache";

Tensor copied(const Tensor& x) {
  NoGrad no_grad;
  return x.defined() ? x.clone() : x;
}

/// `x`, of which `length` tokens count, in memory for `room` of them.
Tensor with_room(const Tensor& x, const Tensor& like, int64_t length, int64_t room) {
  Tensor y = empty({like.size(0), like.size(1), room, like.size(3)}, {like.dtype(), like.device()});
  if (length > 0) y.narrow(2, 0, length).copy_(x.narrow(2, 0, length));
  return y;
}

}  // namespace

KeyValueCache::KeyValueCache(int64_t tokens) : capacity(tokens) {
  check<ValueError>(tokens >= 0, name, "capacity ", tokens, " must not be negative");
}

KeyValueCache::KeyValueCache(const KeyValueCache& other)
    : key(copied(other.key)), value(copied(other.value)), length(other.length), capacity(other.capacity) {}

KeyValueCache::KeyValueCache(KeyValueCache&& other) noexcept
    : key(std::exchange(other.key, Tensor())),
      value(std::exchange(other.value, Tensor())),
      length(std::exchange(other.length, 0)),
      capacity(other.capacity) {}

KeyValueCache& KeyValueCache::operator=(const KeyValueCache& other) { return *this = KeyValueCache(other); }

KeyValueCache& KeyValueCache::operator=(KeyValueCache&& other) noexcept {
  if (this == &other) return *this;
  key = std::exchange(other.key, Tensor());
  value = std::exchange(other.value, Tensor());
  length = std::exchange(other.length, 0);
  capacity = other.capacity;
  return *this;
}

std::pair<Tensor, Tensor> KeyValueCache::write(const Tensor& keys, const Tensor& values) {
  check_defined(name, "keys", keys);
  check_defined(name, "values", values);
  check<ShapeError>(keys.dim() == 4 && values.shape() == keys.shape(), name, "keys ", keys.shape(), " and values ",
                    values.shape(), ": expected both [N, key_value_heads, length, width]");
  check<GraphError>(!keys.requires_grad() && !values.requires_grad(), name,
                    "no gradient goes through a cache: use it under `NoGrad no_grad;`");
  const bool fits = key.defined() && key.dtype() == keys.dtype() && key.device() == keys.device() &&
                    key.size(0) == keys.size(0) && key.size(1) == keys.size(1) && key.size(3) == keys.size(3);
  if (length > 0 && !fits) {
    check<DeviceError>(key.device() == keys.device(), name, "it is on ", key.device(), " and is given keys on ",
                       keys.device(), ": clear() it when a model moves");
    check<DTypeError>(key.dtype() == keys.dtype(), name, "it holds ", key.dtype(), " and is given ", keys.dtype(),
                      ": clear() it when a model changes its dtype");
    const Shape held{key.size(0), key.size(1), length, key.size(3)};
    check<ShapeError>(key.size(0) == keys.size(0), name, "it holds ", held, " and is given ", keys.shape(),
                      ": the batch sizes ", key.size(0), " and ", keys.size(0),
                      " differ; reorder() picks rows, clear() "
                      "starts anew");
    check<ShapeError>(key.size(1) == keys.size(1) && key.size(3) == keys.size(3), name, "it holds ", held,
                      " and is given ", keys.shape(), ": one cache serves one attention layer");
  }
  const int64_t total = length + keys.size(2), room = fits ? key.size(2) : 0;
  check<ShapeError>(capacity == 0 || total <= capacity, name, "it holds ", length, " tokens and is given ",
                    keys.size(2), " more, which is beyond its capacity ", capacity,
                    ": truncate() it, make it larger, or make it with capacity 0, which grows");
  NoGrad no_grad;
  if (!fits || total > room) {
    const int64_t wanted = capacity > 0 ? capacity : std::max({total, 2 * room, int64_t{16}});
    Tensor larger_key = with_room(key, keys, length, wanted);
    value = with_room(value, values, length, wanted);
    key = larger_key;
  }
  if (keys.size(2) > 0) {
    key.narrow(2, length, keys.size(2)).copy_(keys);
    value.narrow(2, length, keys.size(2)).copy_(values);
  }
  return {key.narrow(2, 0, total), value.narrow(2, 0, total)};
}

void KeyValueCache::reorder(const Tensor& rows) {
  check_defined(name, "rows", rows);
  check_integer(name, "rows", rows);
  check<ShapeError>(rows.dim() == 1 && rows.numel() > 0, name, "reorder: rows ", rows.shape(),
                    ": expected [N'] with at least one");
  if (!key.defined()) return;
  NoGrad no_grad;
  if (rows.device() == cpu()) {  // elsewhere, looking would take longer than copying
    const std::vector<int64_t> from = rows.to_vector<int64_t>();
    bool same = rows.numel() == key.size(0);
    for (size_t i = 0; same && i < from.size(); ++i) same = from[i] == static_cast<int64_t>(i);
    if (same) return;
  }
  const Tensor index = rows.to(key.device());
  const auto picked = [&](const Tensor& x) {
    Tensor y = index_select(x.narrow(2, 0, length), 0, index);
    return length == x.size(2) ? y : with_room(y, y, length, x.size(2));
  };
  Tensor picked_key = picked(key);
  value = picked(value);
  key = picked_key;
}

void KeyValueCache::truncate(int64_t tokens) {
  check<ValueError>(tokens >= 0 && tokens <= length, name, "truncate: ", tokens, " tokens of the ", length,
                    " it holds");
  length = tokens;
}

void KeyValueCache::clear() {
  key = Tensor();
  value = Tensor();
  length = 0;
}

}  // namespace regard::layers
