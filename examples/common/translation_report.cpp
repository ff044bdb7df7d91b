#include <algorithm>
#include <numeric>
#include <regard/autograd/graph.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/translation_report.hpp>
#include <utility>

namespace examples {

using regard::layers::EncoderDecoder;

int64_t edit_distance(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> row(b.size() + 1);  // distances of what was read of a to each beginning of b
  std::iota(row.begin(), row.end(), int64_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i) + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const int64_t substituted = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

TranslationTest test_translations(const EncoderDecoder& model, const std::vector<TranslationQuestion>& questions,
                                  int64_t beam, double length_penalty) {
  std::vector<std::vector<int64_t>> sources;
  for (const TranslationQuestion& question : questions) sources.push_back(question.source_tokens);
  auto found = translate(model, sources, search_options(model, beam, length_penalty));
  TranslationTest test;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::vector<int64_t>& said = test.said.emplace_back(std::move(found[i].front().tokens));
    std::pair<int64_t, int64_t> nearest{INT64_MAX, 0};  // edits, and minus the answer's length
    for (const auto& answer : questions[i].answer_tokens)
      nearest = std::min(nearest, std::pair(edit_distance(said, answer), -std::ssize(answer)));
    test.right += nearest.first == 0;
    test.errors += nearest.first;
    test.symbols -= nearest.second;
  }
  return test;
}

void show_translations(std::ostream& out, const TranslationTest& test,
                       const std::vector<TranslationQuestion>& questions, const SymbolVocabulary& target) {
  constexpr std::size_t most_wrong = 4, most = 8;
  const auto is_right = [&](std::size_t i) {
    const auto& answers = questions[i].answer_tokens;
    return std::find(answers.begin(), answers.end(), test.said[i]) != answers.end();
  };
  std::vector<std::size_t> wrong, right;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    if (is_right(i) && right.size() < most) right.push_back(i);
    if (!is_right(i) && wrong.size() < most_wrong) wrong.push_back(i);
  }
  right.resize(std::min(right.size(), most - wrong.size()));
  for (std::size_t i : right)
    out << "  right  " << questions[i].source << " -> " << target.decode(test.said[i]) << "\n";
  for (std::size_t i : wrong)
    out << "  wrong  " << questions[i].source << " -> " << target.decode(test.said[i]) << "   expected "
        << questions[i].answers.front() << "\n";
}

void draw_translation_loss(const std::filesystem::path& run, const std::string& title) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = "cross entropy of a symbol";
  chart.log_y = true;
  chart.series = {{.label = "training"}, {.label = "held out"}};
  for (const auto& values : read_metrics(run / "metrics.jsonl")) {
    const auto add = [&](Series& series, const char* key) {
      if (!values.contains(key) || !values[key].is_number()) return;
      series.x.push_back(values.at("step").get<double>());
      series.y.push_back(values[key].get<double>());
    };
    add(chart.series[0], "cross_entropy");
    add(chart.series[1], "held_out_cross_entropy");
  }
  write_file_atomically(run / "loss.svg", line_chart(chart));
}

void draw_cross_attention(const std::filesystem::path& path, const EncoderDecoder& model,
                          const SymbolVocabulary& source_vocabulary, const SymbolVocabulary& target_vocabulary,
                          const std::string& source) {
  regard::NoGrad no_grad;
  const std::vector<int64_t> read = source_vocabulary.encode(source);
  const regard::layers::Hypothesis best = translate(model, {read}, search_options(model, 1, 0))[0][0];
  std::vector<int64_t> told = {SymbolVocabulary::start};  // what the decoder has been told when it says each symbol
  told.insert(told.end(), best.tokens.begin(), best.tokens.end());
  if (!best.ended) told.pop_back();
  const auto length = std::ssize(told);
  const SourceBatch rows = source_batch({read}, model.device());
  const auto [logits, weights] =
      model.forward_with_weights(rows.ids, regard::from_vector(told, {1, length}).to(model.device()), rows.mask);

  HeatMaps picture;
  picture.title = "What each symbol attends to: " + source + " -> " + target_vocabulary.decode(best.tokens);
  picture.row_axis = "what it says";
  picture.column_axis = "what it reads";
  picture.value_label = "weight";
  picture.low = 0;
  picture.high = 1;
  std::vector<std::string> say, reads;
  for (int64_t token : best.tokens) say.push_back(target_vocabulary.label(token));
  if (best.ended) say.push_back(target_vocabulary.label(SymbolVocabulary::end));
  for (int64_t token : read) reads.push_back(source_vocabulary.label(token));
  reads.push_back(source_vocabulary.label(SymbolVocabulary::end));
  for (std::size_t layer = 0; layer < weights.size(); ++layer) {
    const int64_t heads = weights[layer].size(1);  // [1, heads, T, S]
    picture.maps_per_line = std::min<int64_t>(heads, 4);
    for (int64_t head = 0; head < heads; ++head)
      picture.maps.push_back({.label = "layer " + std::to_string(layer + 1) + ", head " + std::to_string(head + 1),
                              .rows = length,
                              .columns = std::ssize(reads),
                              .values = weights[layer][0][head].to_vector<double>(),
                              .row_labels = say,
                              .column_labels = reads});
  }
  write_file_atomically(path, heat_maps(picture));
}

}  // namespace examples
