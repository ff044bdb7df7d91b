// Where a WordPiece tokenizer is read from and written to: the files of a Hugging Face style folder.
#include <algorithm>
#include <optional>

#include <regard/autograd/file.hpp>
#include <regard/optim/data/json_file-inl.hpp>
#include <regard/optim/data/word_piece.hpp>

namespace regard::data {

namespace {

namespace fs = std::filesystem;
constexpr const char* op = "word_piece";

std::vector<std::string> read_lines(const fs::path& path) {
  InputFile file(path);
  check<FileError>(file.size() > 0, op, path.string(), ": is empty, and should hold a piece a line");
  check<FileError>(file.size() <= (uint64_t{1} << 30), op, path.string(), ": ", file.size(),
                   " bytes are too many for a vocabulary");
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

std::vector<std::string> read_vocabulary(const JsonFile& file) {
  const auto model = file.json.find("model");
  check<FileError>(
      model != file.json.end() && model->is_object() && model->contains("vocab") && model->at("vocab").is_object(), op,
      file.path.string(), ": 'model.vocab' is missing");
  const auto& entries = model->at("vocab");
  std::vector<std::string> vocabulary(entries.size());
  std::vector<bool> seen(entries.size(), false);
  for (const auto& [piece, value] : entries.items()) {
    const auto id = file.typed<int64_t>(op, "model.vocab." + piece, value);
    check<FileError>(id >= 0 && id < static_cast<int64_t>(seen.size()) && !seen[static_cast<size_t>(id)], op,
                     file.path.string(), ": 'model.vocab' should number its ", seen.size(), " pieces from 0 on, and '",
                     piece, "' has ", id);
    seen[static_cast<size_t>(id)] = true;
    vocabulary[static_cast<size_t>(id)] = piece;
  }
  return vocabulary;
}

// What tokenizer.json says; it describes tokenizers of every kind, and only BERT's are read.
void read_tokenizer(const JsonFile& file, WordPieceOptions& options) {
  const auto part = [&](const char* key) {
    return JsonFile{file.path, file.has(key) && file.json.at(key).is_object() ? file.json.at(key)
                                                                              : nlohmann::ordered_json::object()};
  };
  const auto check_type = [&](const char* key, const char* wanted) {
    const std::string type = part(key).get<std::string>(op, "type", "");
    check<FileError>(type == wanted || (type.empty() && std::string_view(key) == "model"), op, file.path.string(),
                     ": '", key, "' is of type '", type, "'; read is '", wanted, "', BERT's, alone");
  };
  check_type("model", "WordPiece");
  check_type("normalizer", "BertNormalizer");
  check_type("pre_tokenizer", "BertPreTokenizer");
  const JsonFile model = part("model"), normalizer = part("normalizer");
  options.prefix = model.get<std::string>(op, "continuing_subword_prefix", options.prefix);
  options.longest_word = model.get<int64_t>(op, "max_input_chars_per_word", options.longest_word);
  options.unknown = model.get<std::string>(op, "unk_token", options.unknown);
  BasicWordsOptions& words = options.words;
  words.lower_case = normalizer.get<bool>(op, "lowercase", words.lower_case);
  words.strip_accents = normalizer.get<bool>(op, "strip_accents", words.lower_case);
  words.split_chinese = normalizer.get<bool>(op, "handle_chinese_chars", words.split_chinese);
  words.clean_text = normalizer.get<bool>(op, "clean_text", words.clean_text);
  if (!file.has("added_tokens")) return;
  for (const auto& added : file.json.at("added_tokens")) {
    const JsonFile token{file.path, added.is_object() ? added : nlohmann::ordered_json::object()};
    const auto content = token.require<std::string>(op, "content");
    check<FileError>(token.get<bool>(op, "special", false), op, file.path.string(), ": the added token '", content,
                     "' is not special; such tokens are not read");
    options.more_special.push_back(content);
  }
}

// Names of special tokens, in special_tokens_map.json and tokenizer_config.json alike: a text, or {"content": text}.
void read_names(const JsonFile& file, WordPieceOptions& options) {
  const std::pair<const char*, std::string*> names[] = {{"unk_token", &options.unknown},
                                                        {"cls_token", &options.classify},
                                                        {"sep_token", &options.separate},
                                                        {"pad_token", &options.pad},
                                                        {"mask_token", &options.mask}};
  for (const auto& [key, name] : names) {
    if (!file.has(key)) continue;
    const auto& value = file.json.at(key);
    *name = value.is_object() && value.contains("content")
                ? file.typed<std::string>(op, std::string(key) + ".content", value.at("content"))
                : file.typed<std::string>(op, key, value);
  }
}

}  // namespace

WordPieceTokenizer WordPieceTokenizer::from_folder(const fs::path& folder) {
  WordPieceOptions options;
  std::optional<JsonFile> tokenizer;
  std::error_code ignored;
  const auto there = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (there("tokenizer.json")) {
    tokenizer = JsonFile::read(op, folder / "tokenizer.json");
    read_tokenizer(*tokenizer, options);
  }
  if (there("special_tokens_map.json")) read_names(JsonFile::read(op, folder / "special_tokens_map.json"), options);
  if (there("tokenizer_config.json")) {
    const JsonFile config = JsonFile::read(op, folder / "tokenizer_config.json");
    read_names(config, options);
    BasicWordsOptions& words = options.words;
    const bool follows = words.strip_accents == words.lower_case;  // accents go with case unless they are mentioned
    words.lower_case = config.get<bool>(op, "do_lower_case", words.lower_case);
    words.strip_accents = config.get<bool>(op, "strip_accents", follows ? words.lower_case : words.strip_accents);
    words.split_chinese = config.get<bool>(op, "tokenize_chinese_chars", words.split_chinese);
    options.special_in_text = !config.get<bool>(op, "split_special_tokens", false);
  }
  const fs::path vocabulary = there("vocab.txt") || !tokenizer ? folder / "vocab.txt" : tokenizer->path;
  try {
    return WordPieceTokenizer(
        vocabulary.filename() == "vocab.txt" ? read_lines(vocabulary) : read_vocabulary(*tokenizer), options);
  } catch (const ValueError& error) {
    throw FileError(vocabulary.string() + ": " + error.what());
  }
}

void WordPieceTokenizer::save(const fs::path& folder, int64_t longest) const {
  using Json = nlohmann::ordered_json;
  std::string text;
  Json pieces = Json::object(), added = Json::array();
  for (size_t i = 0; i < vocabulary_.size(); ++i) {
    check<ValueError>(vocabulary_[i].find_first_of("\r\n") == std::string::npos, op, "piece ", i,
                      " holds a line break, which vocab.txt cannot");
    text += vocabulary_[i] + "\n";
  }
  std::vector<std::pair<int64_t, std::string>> by_id;
  for (const auto& [piece, id] : ids_) by_id.emplace_back(id, piece);
  std::sort(by_id.begin(), by_id.end());
  for (const auto& [id, piece] : by_id) pieces[piece] = id;
  std::vector<std::pair<std::string, int64_t>> special = special_;
  std::sort(special.begin(), special.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [name, id] : special)
    added.push_back({{"id", id},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});

  Json names = {{"unk_token", options_.unknown},
                {"sep_token", options_.separate},
                {"pad_token", options_.pad},
                {"cls_token", options_.classify}};
  if (mask_ >= 0) names["mask_token"] = options_.mask;
  Json config = {{"do_lower_case", options_.words.lower_case},
                 {"strip_accents", options_.words.strip_accents},
                 {"tokenize_chinese_chars", options_.words.split_chinese},
                 {"model_max_length", longest},
                 {"tokenizer_class", "BertTokenizer"}};
  if (!options_.special_in_text) config["split_special_tokens"] = true;
  config.update(names);

  const auto token = [](const std::string& name, int64_t type) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto sequence = [](const char* name, int64_t type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto template_token = [](const std::string& name, int64_t id) {
    return Json{{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
  };
  const std::string &cls = options_.classify, &sep = options_.separate;
  Json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", options_.words.clean_text},
        {"handle_chinese_chars", options_.words.split_chinese},
        {"strip_accents", options_.words.strip_accents},
        {"lowercase", options_.words.lower_case}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({token(cls, 0), sequence("A", 0), token(sep, 0)})},
        {"pair", Json::array({token(cls, 0), sequence("A", 0), token(sep, 0), sequence("B", 1), token(sep, 1)})},
        {"special_tokens", {{cls, template_token(cls, classify_)}, {sep, template_token(sep, separate_)}}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", options_.prefix}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", options_.unknown},
        {"continuing_subword_prefix", options_.prefix},
        {"max_input_chars_per_word", options_.longest_word},
        {"vocab", pieces}}}};

  write_file_atomically(folder / "vocab.txt", text);
  write_file_atomically(folder / "special_tokens_map.json", names.dump(2) + "\n");
  write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
  write_file_atomically(folder / "tokenizer.json", tokenizer.dump(2) + "\n");
}

}  // namespace regard::data
