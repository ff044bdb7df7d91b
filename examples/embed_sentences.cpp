// Sentences as vectors: reads a BERT-type encoder from a Hugging Face style folder, and writes each sentence's vector,
// the sentences nearest to each, or those nearest to a question.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <optional>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/labelled_lines.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/svg.hpp>
#include <regard/layers/models/sentence_encoder.hpp>
#include <string>
#include <string_view>
#include <vector>

using namespace examples;

namespace {

struct EmbedOptions {
  std::string model, format = "json";
  std::optional<std::string> file, query, picture, device;
  bool similar = false;
  int64_t top = 3, batch = 32;
  std::optional<int64_t> threads;
  std::vector<std::string> sentences;
};

std::optional<EmbedOptions> read_options(int argc, char** argv) {
  EmbedOptions options;
  std::optional<std::string> model;
  Options line("embed_sentences",
               "Turns sentences into vectors, so that sentences of like meaning lie close together. Sentences are the "
               "lines of standard input, or of --file, or what stands behind a lone -- on the command line:  "
               "embed_sentences --model FOLDER --similar -- 'One sentence.' 'Another one.'");
  line.section("The model");
  line.text("model", model,
            "a folder as Hugging Face's: config.json, model.safetensors, vocab.txt, and where they are there "
            "modules.json, 1_Pooling/config.json and sentence_bert_config.json",
            "must be given", "FOLDER");
  line.integer("batch", options.batch, "sentences computed at once", {.at_least = 1, .at_most = 4096});
  line.integer("threads", options.threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  line.device(options.device);
  line.section("What it reads and writes");
  line.text("file", options.file, "read sentences from this file, a line each", "standard input", "FILE");
  line.choice("format", options.format, {"json", "tsv"},
              "of the vectors: a line {\"text\": ..., \"embedding\": [...]} each, or the numbers and the text, with "
              "tabs between");
  line.flag("similar", options.similar, "write the sentences nearest to each, with the cosine of the two");
  line.text("query", options.query, "write the sentences nearest to this one", "none");
  line.integer("top", options.top, "how many of the nearest ones", {.at_least = 1, .at_most = 1000000});
  line.text("picture", options.picture, "draw the cosines of all pairs as a heat map (up to 60 sentences)", "none",
            "FILE.svg");

  int own = argc;
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--") {
      own = i;
      break;
    }
  if (!line.parse(own, argv)) return std::nullopt;
  for (int i = own + 1; i < argc; ++i) options.sentences.emplace_back(argv[i]);
  if (!model) throw UsageError("model", "give the folder of a model");
  options.model = *model;
  if (options.similar && options.query) throw UsageError("query", "has no meaning with --similar; give one of them");
  if (line.given("format") && (options.similar || options.query))
    throw UsageError("format", "has no meaning with --similar or --query, which write no vectors");
  if (line.given("top") && !options.similar && !options.query)
    throw UsageError("top", "has no meaning without --similar or --query");
  if (own < argc && options.file) throw UsageError("file", "has no meaning with sentences behind --; give one of them");
  if (own + 1 == argc) throw UsageError("no sentence stands behind --");
  if (options.sentences.empty()) options.sentences = read_lines(options.file.value_or("-"));
  if (options.sentences.empty()) throw UsageError(options.file.value_or("standard input") + ": holds no sentence");
  return options;
}

// The indices of the `count` largest scores, largest first, the first of equals first.
std::vector<std::size_t> largest(const std::vector<double>& scores, std::size_t count) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(count, order.size()));
  return order;
}

void write_vectors(const EmbedOptions& options, const regard::Tensor& vectors) {
  for (std::size_t i = 0; i < options.sentences.size(); ++i) {
    const auto vector = vectors[static_cast<int64_t>(i)].to_vector<float>();
    if (options.format == "json") {
      std::cout << nlohmann::ordered_json{{"text", options.sentences[i]}, {"embedding", vector}}.dump() << "\n";
      continue;
    }
    char number[32];
    for (float value : vector) {
      std::snprintf(number, sizeof number, "%.9g\t", static_cast<double>(value));
      std::cout << number;
    }
    std::string text = options.sentences[i];
    std::replace(text.begin(), text.end(), '\t', ' ');
    std::cout << text << "\n";
  }
}

void write_nearest(const std::vector<std::string>& sentences, const std::vector<double>& scores, std::size_t count,
                   const char* indent) {
  for (std::size_t i : largest(scores, count)) {
    char score[32];
    std::snprintf(score, sizeof score, "%7.4f  ", scores[i]);
    std::cout << indent << score << sentences[i] << "\n";
  }
}

void draw_cosines(const std::string& path, const std::vector<std::string>& sentences,
                  const std::vector<double>& cosines) {
  HeatMaps picture;
  picture.title = "How near sentences are to each other";
  picture.value_label = "cosine";
  picture.high = 1;
  const auto count = static_cast<int64_t>(sentences.size());
  picture.maps.push_back({.label = "",
                          .rows = count,
                          .columns = count,
                          .values = cosines,
                          .row_labels = sentences,
                          .column_labels = sentences});
  write_file_atomically(path, heat_maps(picture));
}

int run(int argc, char** argv) {
  const std::optional<EmbedOptions> given = read_options(argc, argv);
  if (!given) return 0;
  const EmbedOptions& options = *given;
  if (options.picture && options.sentences.size() > 60)
    throw UsageError("picture", std::to_string(options.sentences.size()) + " sentences are too many for one; 60 fit");
  if (options.threads) regard::set_num_threads(static_cast<int>(*options.threads));

  const regard::Device device = device_named(options.device.value_or("cpu"));

  auto encoder = regard::layers::SentenceEncoder::from_folder(options.model);
  encoder.to(device);
  int64_t truncated = 0;
  const regard::Tensor vectors = encoder.encode(options.sentences, options.batch, &truncated);  // [sentences, width]
  if (truncated > 0)
    std::cerr << "embed_sentences: " << truncated << " of " << options.sentences.size() << " sentences are longer than "
              << encoder.options.longest << " tokens and were cut\n";

  const std::vector<std::string>& sentences = options.sentences;
  const auto top = static_cast<std::size_t>(options.top);
  const regard::Tensor directions = regard::layers::normalise_rows(vectors);
  if (options.query) {
    const regard::Tensor query = regard::layers::normalise_rows(encoder.encode({*options.query}));
    write_nearest(sentences, directions.matmul(query[0]).to_vector<double>(), top, "");
  } else if (options.similar) {
    for (std::size_t i = 0; i < sentences.size(); ++i) {
      auto scores = directions.matmul(directions[static_cast<int64_t>(i)]).to_vector<double>();
      scores[i] = -2;  // not itself
      std::cout << sentences[i] << "\n";
      write_nearest(sentences, scores, std::min(top, sentences.size() - 1), "  ");
    }
  } else if (!options.picture) {
    write_vectors(options, vectors.to(regard::cpu()));
  }
  if (options.picture)
    draw_cosines(*options.picture, options.sentences, directions.matmul(directions.t()).to_vector<double>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("embed_sentences", argc, argv, run); }
