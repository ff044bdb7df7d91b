#include <algorithm>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <stdexcept>

namespace examples {

using regard::Tensor;
using regard::Tensors;

SequenceModel::SequenceModel(const SequenceModelOptions& options)
    : longest_input(options.longest_input),
      longest_output(options.longest_output),
      tokens(options.vocabulary, options.width),
      from_front(longest_input + 1 + longest_output, options.width),
      from_start(longest_input + 1 + longest_output, options.width),
      norm(options.width),
      head(options.width, options.vocabulary) {
  for (int64_t i = 0; i < options.layers; ++i)
    blocks.emplace_back(options.width, options.heads,
                        regard::layers::TransformerLayerOptions{.dropout = options.dropout});
}

SequenceRows SequenceModel::rows(const std::vector<int64_t>& token_rows, int64_t count) const {
  const auto length = static_cast<int64_t>(token_rows.size()) / count;
  std::vector<int64_t> places;
  places.reserve(token_rows.size());
  for (auto row = token_rows.begin(); row != token_rows.end(); row += length) {
    const int64_t start = std::find(row, row + length, Vocabulary::start) - row;
    if (start == length) throw std::invalid_argument("SequenceModel: a row without a start token");
    for (int64_t place = 0; place < length; ++place)  // only padding can lie behind the longest answer
      places.push_back(longest_input + std::min(place - start, longest_output));
  }
  const regard::Device device = tokens.weight.device();
  return {regard::from_vector(token_rows, {count, length}).to(device),
          regard::from_vector(places, {count, length}).to(device)};
}

Tensor SequenceModel::embed(const SequenceRows& rows) const {
  const Tensor places = regard::arange(rows.tokens.size(1), {regard::DType::i64, rows.tokens.device()});
  return tokens(rows.tokens) + from_front(places) + from_start(rows.from_start);  // [B, T, width]
}

Tensor SequenceModel::operator()(const SequenceRows& rows) const {
  Tensor x = embed(rows);
  for (const auto& block : blocks) x = block(x, {.causal = true});
  return head(norm(x));
}

std::pair<Tensor, Tensors> SequenceModel::forward_with_weights(const SequenceRows& rows) const {
  Tensor x = embed(rows);
  Tensors weights;
  for (const auto& block : blocks) {
    auto [next, attention] = block.forward_with_weights(x, {.causal = true});
    x = next;
    weights.push_back(attention);
  }
  return {head(norm(x)), weights};
}

void SequenceModel::members(regard::layers::Members& m) {
  m("tokens", tokens);
  m("from_front", from_front);
  m("from_start", from_start);
  m("blocks", blocks);
  m("norm", norm);
  m("head", head);
}

namespace {

std::vector<std::vector<int64_t>> answer_batch(const SequenceModel& model, const Example* examples, std::size_t count) {
  std::vector<std::vector<int64_t>> rows(count), answers(count);  // rows: question, start, answer so far
  std::size_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    rows[i] = examples[i].input_tokens;
    rows[i].push_back(Vocabulary::start);
    longest = std::max(longest, rows[i].size());
  }
  std::vector<bool> ended(count, false);
  for (int64_t said = 0; said <= model.longest_output && std::count(ended.begin(), ended.end(), false) > 0; ++said) {
    const std::size_t length = longest + static_cast<std::size_t>(said);
    std::vector<int64_t> padded;
    for (const auto& row : rows) {
      padded.insert(padded.end(), row.begin(), row.end());
      padded.resize(padded.size() + length - row.size(), Vocabulary::padding);
    }
    const auto next = regard::argmax(model(model.rows(padded, static_cast<int64_t>(count))), -1).to_vector<int64_t>();
    for (std::size_t i = 0; i < count; ++i) {
      const int64_t token = next[i * length + rows[i].size() - 1];
      rows[i].push_back(token);
      if (token == Vocabulary::end) ended[i] = true;
      if (!ended[i]) answers[i].push_back(token);
    }
  }
  return answers;
}

}  // namespace

std::vector<std::vector<int64_t>> answer(const SequenceModel& model, const std::vector<Example>& examples,
                                         int64_t batch) {
  regard::NoGrad no_grad;
  std::vector<std::vector<int64_t>> answers;
  for (std::size_t begin = 0; begin < examples.size(); begin += static_cast<std::size_t>(batch)) {
    const std::size_t count = std::min(static_cast<std::size_t>(batch), examples.size() - begin);
    for (auto& one : answer_batch(model, &examples[begin], count)) answers.push_back(std::move(one));
  }
  return answers;
}

}  // namespace examples
