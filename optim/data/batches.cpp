#include <regard/optim/data/batches.hpp>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include <regard/autograd/error.hpp>
#include <regard/autograd/philox.hpp>

namespace regard::data {

namespace {

constexpr int rounds = 8;

uint64_t bits_of(uint64_t key, uint64_t counter) {
  const std::array<uint32_t, 4> bits = detail::philox_element(key, counter);
  return uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace

// ---- One order

RandomOrder::RandomOrder(int64_t count, uint64_t seed, int64_t epoch)
    : count_(count), key_(bits_of(seed, static_cast<uint64_t>(epoch))) {
  check<ValueError>(count > 0, "RandomOrder", "count ", count, " must be positive");
  const int bits = std::max(2, static_cast<int>(std::bit_width(static_cast<uint64_t>(count) - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

int64_t RandomOrder::at(int64_t index) const {
  check<IndexError>(index >= 0 && index < count_, "RandomOrder", "index ", index, " is outside of [0, ", count_, ")");
  const uint64_t left_mask = (uint64_t{1} << left_bits_) - 1, right_mask = (uint64_t{1} << right_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> right_bits_, right = value & right_mask;
    for (uint64_t round = 0; round < rounds; round += 2) {
      left ^= bits_of(key_, round << 60 | right) & left_mask;
      right ^= bits_of(key_, (round + 1) << 60 | left) & right_mask;
    }
    value = left << right_bits_ | right;
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

// ---- Batches

BatchOrder::BatchOrder(const BatchOrderOptions& options) : options_(options) {
  check<ValueError>(options.count > 0, "BatchOrder", "count ", options.count,
                    " must be positive: there are no examples");
  check<ValueError>(options.batch > 0, "BatchOrder", "batch ", options.batch, " must be positive");
  check<ValueError>(!options.drop_last || options.count >= options.batch, "BatchOrder", "the ", options.count,
                    " examples do not fill one batch of ", options.batch,
                    ", and drop_last leaves out short ones: nothing would be left");
}

int64_t BatchOrder::batches_per_epoch() const {
  const int64_t whole = options_.count / options_.batch;
  return whole + (options_.drop_last || options_.count % options_.batch == 0 ? 0 : 1);
}

std::vector<int64_t> BatchOrder::at(int64_t epoch, int64_t batch) const {
  check<IndexError>(epoch >= 0 && batch >= 0 && batch < batches_per_epoch(), "BatchOrder", "there is no batch ", batch,
                    " of epoch ", epoch, "; an epoch has ", batches_per_epoch());
  const int64_t begin = batch * options_.batch;
  const int64_t end = begin + std::min(options_.batch, options_.count - begin);
  std::vector<int64_t> indices;
  indices.reserve(static_cast<size_t>(end - begin));
  const RandomOrder order(options_.count, options_.seed, epoch);
  for (int64_t i = begin; i < end; ++i) indices.push_back(options_.shuffle ? order.at(i) : i);
  return indices;
}

std::vector<int64_t> BatchOrder::next() {
  std::vector<int64_t> indices = at(epoch_, batch_);
  skip();
  return indices;
}

void BatchOrder::skip() {
  if (++batch_ == batches_per_epoch()) {
    batch_ = 0;
    ++epoch_;
  }
}

void BatchOrder::seek(int64_t epoch, int64_t batch) {
  check<ValueError>(epoch >= 0 && batch >= 0 && batch < batches_per_epoch(), "BatchOrder", "there is no batch ", batch,
                    " of epoch ", epoch, "; an epoch has ", batches_per_epoch());
  epoch_ = epoch;
  batch_ = batch;
}

std::string BatchOrder::to_json() const {
  nlohmann::ordered_json json;
  json["epoch"] = epoch_;
  json["batch"] = batch_;
  json["count"] = options_.count;
  json["batch_size"] = options_.batch;
  json["seed"] = options_.seed;
  json["shuffle"] = options_.shuffle;
  json["drop_last"] = options_.drop_last;
  return json.dump();
}

void BatchOrder::restore(std::string_view text) {
  int64_t epoch = 0, batch = 0;
  try {
    const auto json = nlohmann::json::parse(text);
    const auto same = [&](const char* name, auto wanted) {
      const auto given = json.at(name).get<decltype(wanted)>();
      check<ValueError>(given == wanted, "BatchOrder.restore", "the position is of an order with ", name, " ", given,
                        ", this one has ", wanted, ": they would not go on alike");
    };
    same("count", options_.count);
    same("batch_size", options_.batch);
    same("seed", options_.seed);
    same("shuffle", options_.shuffle);
    same("drop_last", options_.drop_last);
    epoch = json.at("epoch").get<int64_t>();
    batch = json.at("batch").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    fail<ValueError>("BatchOrder.restore", "the text is no position of an order: ", error.what());
  }
  seek(epoch, batch);
}

}  // namespace regard::data
