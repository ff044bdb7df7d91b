#include <regard/layers/models/sentence_encoder.hpp>

#include <algorithm>
#include <numeric>

#include <regard/autograd/ops.hpp>
#include <regard/optim/data/json_file-inl.hpp>

namespace regard::layers {

namespace {

namespace fs = std::filesystem;
constexpr const char* encoder_op = "sentence_encoder";

// 1_Pooling/config.json: one switch for each way in older files, one name in newer ones.
Pooling read_pooling(const fs::path& path) {
  const JsonFile file = JsonFile::read(encoder_op, path);
  std::vector<std::string> modes;
  if (file.has("pooling_mode")) {
    modes.push_back(file.get<std::string>(encoder_op, "pooling_mode", ""));
  } else {
    for (const auto& [key, value] : file.json.items())
      if (key.starts_with("pooling_mode_") && file.typed<bool>(encoder_op, key, value)) modes.push_back(key.substr(13));
  }
  check<FileError>(!modes.empty(), encoder_op, path.string(), ": no 'pooling_mode' is true");
  check<FileError>(modes.size() == 1, encoder_op, path.string(), ": more than one 'pooling_mode' is true, '", modes[0],
                   "' and '", modes.back(), "'; vectors put together from several are not made");
  const std::string& mode = modes[0];
  if (mode == "mean_tokens" || mode == "mean") return Pooling::mean;
  if (mode == "cls_token" || mode == "cls") return Pooling::first;
  if (mode == "max_tokens" || mode == "max") return Pooling::max;
  fail<FileError>(encoder_op, path.string(), ": the 'pooling_mode' is '", mode, "'; there are mean, cls and max");
}

struct Modules {
  bool normalise = false;
  fs::path pooling;
};

Modules read_modules(const fs::path& path) {
  InputFile input(path);
  std::string text(std::min<uint64_t>(input.size(), 1 << 20), '\0');
  input.read(0, text.data(), text.size());
  const auto list = nlohmann::json::parse(text, nullptr, false);
  check<FileError>(list.is_array(), encoder_op, path.string(), ": should hold a JSON list of modules");
  Modules modules;
  for (const auto& module : list) {
    check<FileError>(module.is_object() && module.contains("type") && module.at("type").is_string(), encoder_op,
                     path.string(), ": a module has no 'type'");
    const auto type = module.at("type").get<std::string>();
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Normalize") {
      modules.normalise = true;
    } else if (name == "Pooling") {
      modules.pooling = path.parent_path() / module.value("path", "1_Pooling") / "config.json";
    } else {
      check<FileError>(name == "Transformer", encoder_op, path.string(), ": the module '", type,
                       "' is none of Transformer, Pooling and Normalize, which are what there is");
    }
  }
  return modules;
}

// Longer than a text may be; what several files say, the smallest of it.
void limit(int64_t& longest, int64_t value) {
  if (value > 0) longest = std::min(longest, value);
}

}  // namespace

const char* to_string(Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return "mean";
    case Pooling::first:
      return "cls";
    case Pooling::max:
      return "max";
  }
  return "?";
}

Tensor pool_tokens(const Tensor& x, const Tensor& mask, Pooling pooling) {
  check_defined("pool_tokens", "x", x);
  check_defined("pool_tokens", "mask", mask);
  check<ShapeError>(x.dim() == 3 && mask.shape() == Shape({x.size(0), x.size(1)}), "pool_tokens", "x ", x.shape(),
                    " should be [batch, length, width], and mask ", mask.shape(), " [batch, length]");
  if (pooling == Pooling::first) return x.select(1, 0);
  const Tensor blocked = (mask == 0).unsqueeze(-1);  // [N, T, 1]
  if (pooling == Pooling::max) return amax(masked_fill(x, blocked, -1e9), {1});
  const Tensor count = clamp((mask != 0).to(x.dtype()).sum({1}, true), 1e-9);  // [N, 1]
  return masked_fill(x, blocked, 0.0).sum({1}) / count;
}

Tensor normalise_rows(const Tensor& x) {
  return x / sqrt(clamp(sum(square(x), {-1}, true), 1e-24));  // clamped before the root: no infinite gradient at zero
}

SentenceEncoder::SentenceEncoder(Bert model, data::WordPieceTokenizer word_pieces, const SentenceEncoderOptions& given)
    : bert(std::move(model)), tokenizer(std::move(word_pieces)), options(given) {
  check<ValueError>(tokenizer.vocabulary_size() <= bert.options.vocabulary, encoder_op, "the tokenizer has ",
                    tokenizer.vocabulary_size(), " pieces, and the model vectors for ", bert.options.vocabulary);
  check<ValueError>(options.longest >= 3, encoder_op, "longest ", options.longest, " leaves no room for a token");
  options.longest = std::min(options.longest, bert.options.positions);
}

SentenceEncoder SentenceEncoder::from_folder(const fs::path& folder) {
  std::error_code error;
  check<FileError>(fs::is_directory(folder, error), encoder_op, folder.string(), ": ",
                   fs::exists(folder, error) ? "is no folder" : "there is no such folder",
                   "; wanted is one with config.json, model.safetensors and vocab.txt");
  LoadedBert loaded = load_bert(folder);
  data::WordPieceTokenizer tokenizer = data::WordPieceTokenizer::from_folder(folder);
  check<FileError>(tokenizer.vocabulary_size() <= loaded.model.options.vocabulary, encoder_op, folder.string(),
                   ": the vocabulary has ", tokenizer.vocabulary_size(), " pieces, and config.json's 'vocab_size' is ",
                   loaded.model.options.vocabulary);
  SentenceEncoderOptions options;
  options.longest = loaded.model.options.positions;
  const auto there = [&](const fs::path& path) { return fs::exists(path, error); };
  fs::path pooling = folder / "1_Pooling" / "config.json";
  if (const fs::path path = folder / "modules.json"; there(path)) {
    const Modules modules = read_modules(path);
    options.normalise = modules.normalise;
    if (!modules.pooling.empty()) {
      pooling = modules.pooling;
      check<FileError>(there(pooling), encoder_op, pooling.string(), ": is missing, and ", path.string(),
                       " names its folder");
    }
  }
  if (there(pooling)) options.pooling = read_pooling(pooling);
  if (const fs::path path = folder / "sentence_bert_config.json"; there(path)) {
    const JsonFile file = JsonFile::read(encoder_op, path);
    limit(options.longest, file.get<int64_t>(encoder_op, "max_seq_length", 0));
    options.lower_first = file.get<bool>(encoder_op, "do_lower_case", false);
  } else if (const fs::path other = folder / "tokenizer_config.json"; there(other)) {
    const JsonFile file = JsonFile::read(encoder_op, other);  // a huge number where nothing is known: 1e30
    const auto most = file.get<double>(encoder_op, "model_max_length", static_cast<double>(options.longest));
    if (most < static_cast<double>(options.longest)) options.longest = static_cast<int64_t>(most);
  }
  check<FileError>(options.longest >= 3, encoder_op, folder.string(), ": sentences of at most ", options.longest,
                   " tokens leave no room for a word");
  SentenceEncoder encoder(std::move(loaded.model), std::move(tokenizer), options);
  encoder.eval();
  return encoder;
}

void SentenceEncoder::save(const fs::path& folder) const {
  std::error_code error;
  fs::create_directories(folder / "1_Pooling", error);
  check<FileError>(!error, encoder_op, folder.string(), ": cannot make the folder: ", error.message());
  using Json = nlohmann::ordered_json;
  const auto module = [](int index, const char* path, const char* type) {
    return Json{{"idx", index},
                {"name", std::to_string(index)},
                {"path", path},
                {"type", std::string("sentence_transformers.models.") + type}};
  };
  Json modules = Json::array({module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")});
  if (options.normalise) modules.push_back(module(2, "2_Normalize", "Normalize"));
  const Json pooling = {{"word_embedding_dimension", width()},
                        {"pooling_mode_cls_token", options.pooling == Pooling::first},
                        {"pooling_mode_mean_tokens", options.pooling == Pooling::mean},
                        {"pooling_mode_max_tokens", options.pooling == Pooling::max},
                        {"pooling_mode_mean_sqrt_len_tokens", false}};
  const Json config = {{"max_seq_length", options.longest}, {"do_lower_case", options.lower_first}};
  write_file_atomically(folder / "modules.json", modules.dump(2) + "\n");
  write_file_atomically(folder / "1_Pooling" / "config.json", pooling.dump(2) + "\n");
  write_file_atomically(folder / "sentence_bert_config.json", config.dump(2) + "\n");
  tokenizer.save(folder, bert.options.positions);
  save_bert(folder, bert);
}

Tensor SentenceEncoder::operator()(const Tensor& ids, const Tensor& mask, const Tensor& types) const {
  Tensor x = bert(ids, mask, types);  // [N, T, width]
  Tensor pooled =
      pool_tokens(x, mask.defined() ? mask : ones(ids.shape(), {DType::i64, ids.device()}), options.pooling);
  return options.normalise ? normalise_rows(pooled) : pooled;  // [N, width]
}

data::WordPieceEncoding SentenceEncoder::tokens(const std::string& text) const {
  if (!options.lower_first) return tokenizer.encode_text(text, options.longest);
  return tokenizer.encode_text(data::lower_case(text), options.longest);
}

Tensor SentenceEncoder::operator()(const std::vector<std::string>& texts) const {
  std::vector<data::WordPieceEncoding> encodings;
  for (const std::string& text : texts) encodings.push_back(tokens(text));
  const data::WordPieceBatch batch = tokenizer.batch(encodings);
  const Device device = bert.tokens.weight.device();
  return (*this)(batch.ids.to(device), batch.mask.to(device), batch.types.to(device));
}

Tensor SentenceEncoder::encode(const std::vector<std::string>& texts, int64_t batch, int64_t* truncated) const {
  check<ValueError>(batch > 0, encoder_op, "a batch of ", batch);
  NoGrad no_grad;
  std::vector<data::WordPieceEncoding> encodings;
  int64_t cut = 0;
  for (const std::string& text : texts) {
    encodings.push_back(tokens(text));
    cut += encodings.back().truncated;
  }
  if (truncated != nullptr) *truncated = cut;
  const auto count = static_cast<int64_t>(texts.size());
  if (count == 0) return empty({0, width()}, {bert.tokens.weight.dtype(), bert.tokens.weight.device()});
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return encodings[static_cast<size_t>(a)].ids.size() > encodings[static_cast<size_t>(b)].ids.size();
  });
  const Device device = bert.tokens.weight.device();
  Tensors parts;  // in that order
  for (int64_t begin = 0; begin < count; begin += batch) {
    const int64_t end = std::min(begin + batch, count);
    std::vector<data::WordPieceEncoding> part;
    for (int64_t i = begin; i < end; ++i) part.push_back(encodings[static_cast<size_t>(order[static_cast<size_t>(i)])]);
    const data::WordPieceBatch rows = tokenizer.batch(part);
    parts.push_back((*this)(rows.ids.to(device), rows.mask.to(device), rows.types.to(device)));
  }
  std::vector<int64_t> places(texts.size());
  for (size_t i = 0; i < order.size(); ++i) places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return cat(parts, 0).index_select(0, from_vector(places).to(device));
}

}  // namespace regard::layers
