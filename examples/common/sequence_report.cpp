#include <algorithm>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_report.hpp>
#include <regard/examples/common/svg.hpp>
#include <utility>

namespace examples {

SequenceTest test_sequences(const SequenceModel& model, std::vector<Example> held_out) {
  SequenceTest test;
  test.answers = answer(model, held_out);
  test.examples = std::move(held_out);
  for (std::size_t i = 0; i < test.examples.size(); ++i)
    test.right += test.answers[i] == test.examples[i].output_tokens;
  return test;
}

void show_examples(std::ostream& out, const SequenceTest& test, const Vocabulary& vocabulary) {
  constexpr std::size_t most_wrong = 3, most = 6;
  std::vector<std::size_t> chosen;
  const auto choose = [&](bool right, std::size_t up_to) {
    for (std::size_t i = 0; i < test.examples.size() && chosen.size() < up_to; ++i)
      if ((test.answers[i] == test.examples[i].output_tokens) == right) chosen.push_back(i);
  };
  choose(false, most_wrong);
  const std::size_t wrong = chosen.size();
  choose(true, most);
  std::rotate(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(wrong), chosen.end());
  for (std::size_t i : chosen) {
    const Example& example = test.examples[i];
    const bool right = test.answers[i] == example.output_tokens;
    // Tokens by label: an answer may hold tokens that are no characters, and would look right without them.
    std::string answered;
    for (int64_t token : test.answers[i]) answered += vocabulary.label(token);
    out << (right ? "  right  " : "  wrong  ") << example.input << " -> " << answered;
    if (!right) out << "   expected " << example.output;
    out << "\n";
  }
}

void draw_loss(const std::filesystem::path& path, const std::string& title, const TrainingCourse& course) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = "loss (cross entropy of a symbol)";
  chart.log_y = true;
  chart.series = {{.label = "training", .x = course.steps, .y = course.losses},
                  {.label = "held out", .x = course.held_out_steps, .y = course.held_out_losses}};
  write_file_atomically(path, line_chart(chart));
}

void draw_attention(const std::filesystem::path& path, const SequenceModel& model, const Vocabulary& vocabulary,
                    const Example& example) {
  regard::NoGrad no_grad;
  std::vector<int64_t> said = answer(model, {example})[0];
  if (static_cast<int64_t>(said.size()) > model.longest_output) said.resize(example.output_tokens.size());
  std::vector<int64_t> row = example.input_tokens;  // question, start, answer
  const auto start = static_cast<int64_t>(row.size());
  row.push_back(Vocabulary::start);
  row.insert(row.end(), said.begin(), said.end());
  const auto length = static_cast<int64_t>(row.size());
  const auto [logits, weights] = model.forward_with_weights(model.rows(row, 1));

  HeatMaps picture;
  picture.title = "What each symbol of the answer attends to: " + example.input + " -> " + vocabulary.decode(said);
  picture.row_axis = "what it says";
  picture.column_axis = "what it reads";
  picture.value_label = "weight";
  picture.low = 0;
  picture.high = 1;
  std::vector<std::string> read, say;
  for (int64_t token : row) read.push_back(vocabulary.label(token));
  for (int64_t token : said) say.push_back(vocabulary.label(token));
  say.push_back(vocabulary.label(Vocabulary::end));
  for (std::size_t layer = 0; layer < weights.size(); ++layer) {
    const int64_t heads = weights[layer].size(1);  // [1, heads, T, T]
    picture.maps_per_line = std::min<int64_t>(heads, 4);
    for (int64_t head = 0; head < heads; ++head)
      picture.maps.push_back({.label = "layer " + std::to_string(layer + 1) + ", head " + std::to_string(head + 1),
                              .rows = length - start,
                              .columns = length,
                              .values = weights[layer][0][head].slice(0, start).to_vector<double>(),
                              .row_labels = say,
                              .column_labels = read});
  }
  write_file_atomically(path, heat_maps(picture));
}

}  // namespace examples
