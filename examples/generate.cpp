// Lets a trained language model write: a run of train_language_model, or a GPT-2 folder.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/language_run.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/layers/models/generate.hpp>
#include <sstream>
#include <string>
#include <vector>

using namespace examples;

namespace {

struct GenerateSettings {
  std::string checkpoint;
  std::optional<std::string> prompt, ids, device;
  bool latest = false, no_cache = false, timing = false;
  int64_t length = 500, top_k = 0, seed = 1;
  double temperature = 0.8, top_p = 1;
  std::optional<int64_t> threads;
};

bool read_settings(int argc, char** argv, GenerateSettings& settings) {
  Options line("generate", "Lets a language model that was trained continue a text, token by token, as it comes.");
  line.section("The model");
  line.text("checkpoint", settings.checkpoint,
            "the folder of a run of train_language_model, of one of its checkpoints, or of a GPT-2 model (config.json, "
            "model.safetensors, vocab.json, merges.txt)",
            "FOLDER");
  line.flag("latest", settings.latest, "of a run the newest checkpoint, not the best");
  line.section("The text");
  line.text("prompt", settings.prompt, "how the text begins", "a line end", "TEXT");
  line.text(
      "ids", settings.ids,
      "how the text begins, as the numbers of tokens, '15496 995': then numbers are written, too, and no tokenizer "
      "is needed",
      "none", "NUMBERS");
  line.integer("length", settings.length, "tokens to write, at most", {.at_least = 0, .at_most = 1000000000});
  line.section("How tokens are drawn");
  line.real("temperature", settings.temperature, "below 1 bolder, above 1 wilder; 0: always the likeliest token",
            {.at_least = 0.0, .at_most = 1000.0});
  line.integer("top-k", settings.top_k, "draw from this many of the likeliest tokens; 0: from all", {.at_least = 0});
  line.real("top-p", settings.top_p, "draw from the likeliest tokens that together have this probability; 1: from all",
            {.above = 0.0, .at_most = 1.0});
  line.integer("seed", settings.seed, "equal seeds give equal texts", {.at_least = 0});
  line.section("Computing");
  line.integer("threads", settings.threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  line.device(settings.device);
  line.flag("no-cache", settings.no_cache, "read the whole window again for each token: slower, to compare with");
  line.flag("timing", settings.timing, "at the end say on standard error how fast it was");
  if (!line.parse(argc, argv)) return false;
  if (settings.checkpoint.empty()) throw UsageError("checkpoint", "is needed: the folder of a model");
  if (settings.prompt && settings.ids) throw UsageError("ids", "has no meaning with --prompt; give one of them");
  return true;
}

std::vector<int64_t> read_ids(const std::string& text) {
  std::istringstream words(text);
  std::vector<int64_t> ids;
  for (std::string word; words >> word;) {
    int64_t id = 0;
    const char* end = word.data() + word.size();
    if (const auto [stopped, error] = std::from_chars(word.data(), end, id); error != std::errc() || stopped != end)
      throw UsageError("ids", in_quotes(word) + " is no number; give numbers with spaces between");
    ids.push_back(id);
  }
  if (ids.empty()) throw UsageError("ids", "needs at least one number");
  return ids;
}

// The prompt's tokens. A character that the model never met is named.
std::vector<int64_t> read_prompt(const regard::data::Tokenizer& tokenizer, const std::string& prompt) {
  try {
    return tokenizer.encode(prompt);
  } catch (const regard::ValueError&) {
    std::u32string characters;
    try {
      characters = from_utf8(prompt);
    } catch (const Utf8Error& error) {
      throw UsageError("prompt", error.what());
    }
    for (const char32_t character : characters) {
      try {
        tokenizer.encode(to_utf8(character));
      } catch (const regard::ValueError&) {
        throw UsageError("prompt",
                         in_quotes(to_utf8(character)) + " is no character of the text from which the model learned");
      }
    }
    throw;
  }
}

// Writes at once, and remembers whether that still works: who reads may have gone.
bool show(const std::string& text) {
  std::cout << text << std::flush;
  return static_cast<bool>(std::cout);
}

int write_text(int argc, char** argv) {
  GenerateSettings settings;
  if (!read_settings(argc, argv, settings)) return 0;
  if (settings.threads) regard::set_num_threads(static_cast<int>(*settings.threads));
  const regard::Device device = device_named(settings.device.value_or("cpu"));
  LanguageModel loaded = load_language_model(settings.checkpoint, settings.latest);
  const auto* tokenizer = loaded.tokenizer.get();
  if (!settings.ids && tokenizer == nullptr)
    throw UsageError("prompt",
                     settings.checkpoint + " has no vocab.json and merges.txt to read a text with; give --ids");

  std::vector<int64_t> prompt;
  if (settings.ids) {
    prompt = read_ids(*settings.ids);
    for (int64_t id : prompt)
      if (id < 0 || id >= loaded.model.options.vocabulary)
        throw UsageError("ids", std::to_string(id) + " is no token: the model has " +
                                    std::to_string(loaded.model.options.vocabulary) + ", from 0 on");
  } else {
    prompt = settings.prompt ? read_prompt(*tokenizer, *settings.prompt) : beginning(*tokenizer);
  }

  regard::Generator generator(static_cast<uint64_t>(settings.seed));
  regard::layers::GenerateOptions options;
  options.length = settings.length;
  options.sampling = {settings.temperature, settings.top_k, settings.top_p};
  options.generator = &generator;
  options.stop_token = loaded.stop_token;
  options.cache = !settings.no_cache;
  std::optional<regard::data::StreamingDecoder> decoder;
  if (settings.ids) {
    show(*settings.ids);
    options.on_token = [](int64_t token) { return show(" " + std::to_string(token)); };
  } else {
    decoder.emplace(*tokenizer);
    if (settings.prompt) show(*settings.prompt);
    options.on_token = [&](int64_t token) { return token == loaded.stop_token || show(decoder->add(token)); };
  }
  loaded.model.to(device);
  const auto begin = std::chrono::steady_clock::now();
  const auto written = generate(loaded.model, prompt, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (decoder) show(decoder->finish());
  show("\n");
  if (settings.timing)
    std::fprintf(stderr, "%zu tokens in %.3f s, %.3f ms each\n", written.size(), seconds,
                 1000 * seconds / static_cast<double>(std::max<std::size_t>(written.size(), 1)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("generate", argc, argv, write_text); }
