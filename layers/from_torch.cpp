#include <regard/layers/from_torch.hpp>

#include <array>

#include <regard/autograd/ops.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::layers {

namespace {

/// The layers of a model whose modules in PyTorch have other names, by their paths with a dot at the end.
struct Places {
  std::map<std::string, const MultiHeadAttention*> attentions;
  std::vector<std::string> blocks;

  explicit Places(const Layer& model) {
    const std::string root = model.path().empty() ? "" : model.path() + ".";
    Walk walk;
    walk.on_layer = [&](const std::string& name, Layer& layer) {
      const std::string path = name.empty() ? "" : layer.path().substr(root.size()) + ".";
      if (const auto* attention = dynamic_cast<const MultiHeadAttention*>(&layer)) attentions[path] = attention;
      if (dynamic_cast<const TransformerEncoderLayer*>(&layer) != nullptr ||
          dynamic_cast<const TransformerDecoderLayer*>(&layer) != nullptr)
        blocks.push_back(path);
    };
    walk.run(model);
  }
};

struct Names {
  const char *theirs, *ours;
};
constexpr std::array<Names, 4> block_names{{{"self_attn.", "attention."},
                                            {"multihead_attn.", "cross_attention."},
                                            {"linear1.", "feed_forward.up."},
                                            {"linear2.", "feed_forward.down."}}};
constexpr std::array<Names, 3> projection_names{
    {{"q_proj_weight", "query.weight"}, {"k_proj_weight", "key.weight"}, {"v_proj_weight", "value.weight"}}};
constexpr std::array<const char*, 3> projections{"query.", "key.", "value."};

/// `name` with `from`, which stands at `at`, replaced.
std::string replaced(const std::string& name, size_t at, const std::string& from, const std::string& to) {
  return name.substr(0, at) + to + name.substr(at + from.size());
}
bool stands_at(const std::string& name, size_t at, const std::string& part) {
  return name.compare(at, part.size(), part) == 0;
}

/// Members of blocks, in one direction or the other.
std::string block_member(const Places& places, const std::string& name, bool to_ours) {
  for (const std::string& block : places.blocks) {
    if (!name.starts_with(block)) continue;
    for (const Names& names : block_names) {
      const std::string from = to_ours ? names.theirs : names.ours, to = to_ours ? names.ours : names.theirs;
      if (stands_at(name, block.size(), from)) return replaced(name, block.size(), from, to);
    }
  }
  return name;
}

/// A state dict under new names; two of one name are an error.
class Renamed {
 public:
  explicit Renamed(const char* op) : op_(op) {}
  void put(const std::string& name, const Tensor& tensor, const std::string& from) {
    auto [there, is_new] = origins_.emplace(name, from);
    check<ValueError>(is_new, op_, "'", there->second, "' and '", from, "' would both be '", name, "'");
    state_[name] = tensor;
  }
  StateDict take() { return std::move(state_); }

 private:
  const char* op_;
  StateDict state_;
  std::map<std::string, std::string> origins_;
};

/// in_proj_weight or in_proj_bias of an attention to its three parts.
void unpack(Renamed& result, const std::string& given, const std::string& path, const Tensor& packed,
            const MultiHeadAttention& attention, const char* kind) {
  const int64_t rows[] = {attention.query.weight.size(0), attention.key.weight.size(0), attention.value.weight.size(0)};
  const int64_t total = rows[0] + rows[1] + rows[2];
  check<ShapeError>(packed.dim() >= 1 && packed.size(0) == total, "from_torch", "'", given, "' is ", packed.shape(),
                    " and ", attention.describe(), " packs query, key and value to ", total, " rows: ", rows[0], " + ",
                    rows[1], " + ", rows[2]);
  int64_t first = 0;
  for (size_t i = 0; i < 3; ++i) {
    result.put(path + projections[i] + kind, packed.detach().narrow(0, first, rows[i]), given);
    first += rows[i];
  }
}

/// What `path` + `member` of an attention in PyTorch is here.
void put_attention(Renamed& result, const std::string& given, const std::string& path, const std::string& member,
                   const Tensor& tensor, const MultiHeadAttention& attention) {
  check<ValueError>(member != "bias_k" && member != "bias_v", "from_torch", "'", given,
                    "': a bias that is added to the sequence of keys or values (add_bias_kv) has no counterpart in ",
                    attention.describe());
  if (member == "in_proj_weight") return unpack(result, given, path, tensor, attention, "weight");
  if (member == "in_proj_bias") return unpack(result, given, path, tensor, attention, "bias");
  for (const Names& names : projection_names)
    if (member == names.theirs) return result.put(path + names.ours, tensor, given);
  if (member.starts_with("out_proj."))
    return result.put(path + replaced(member, 0, "out_proj.", "output."), tensor, given);
  result.put(path + member, tensor, given);
}

/// The attention that `name` is a member of.
auto attention_of(const Places& places, const std::string& name) {
  for (auto place = places.attentions.begin(); place != places.attentions.end(); ++place)
    if (name.starts_with(place->first)) return place;
  return places.attentions.end();
}

/// query, key and value of an attention to in_proj_weight or in_proj_bias.
void pack(Renamed& result, const std::string& ours, const std::string& theirs, const StateDict& state,
          const char* kind) {
  Tensors parts;
  std::string missing;
  for (const char* projection : projections) {
    const std::string name = ours + projection + kind;
    auto found = state.find(name);
    if (found == state.end() || !found->second.defined())
      missing += (missing.empty() ? "'" : ", '") + name + "'";
    else
      parts.push_back(found->second.detach());
  }
  if (parts.empty()) return;
  const std::string packed = theirs + "in_proj_" + kind;
  check<ValueError>(missing.empty(), "to_torch", "'", packed,
                    "' packs query, key and value, and the state dict has no ", missing);
  result.put(packed, cat(parts, 0), ours + projections[0] + kind);
}

}  // namespace

StateDict from_torch(const Layer& model, const StateDict& state) {
  const Places places(model);
  Renamed result("from_torch");
  for (const auto& [given, tensor] : state) {
    check_defined("from_torch", given.c_str(), tensor);
    const std::string name = block_member(places, given, true);
    const auto place = attention_of(places, name);
    if (place == places.attentions.end())
      result.put(name, tensor, given);
    else
      put_attention(result, given, place->first, name.substr(place->first.size()), tensor, *place->second);
  }
  return result.take();
}

StateDict to_torch(const Layer& model, const StateDict& state) {
  const Places places(model);
  Renamed result("to_torch");
  for (const auto& [path, attention] : places.attentions) {
    check<ValueError>(attention->key_value_heads == attention->num_heads, "to_torch", "'", path, "' is ",
                      attention->describe(),
                      ": torch.nn.MultiheadAttention has as many heads of keys and values as of queries");
    const std::string theirs = block_member(places, path, false);
    const int64_t width = attention->query.weight.size(1);
    if (attention->key.weight.size(1) == width && attention->value.weight.size(1) == width)
      pack(result, path, theirs, state, "weight");
    else
      for (const Names& names : projection_names)
        if (auto found = state.find(path + names.ours); found != state.end())
          result.put(theirs + names.theirs, found->second, found->first);
    pack(result, path, theirs, state, "bias");
  }
  for (const auto& [given, tensor] : state) {
    const std::string name = block_member(places, given, false);
    const auto place = attention_of(places, given);
    if (place == places.attentions.end()) {
      result.put(name, tensor, given);
      continue;
    }
    const std::string member = given.substr(place->first.size());
    bool packed = false;
    for (const char* projection : projections)
      packed = packed || member == projection + std::string("weight") || member == projection + std::string("bias");
    if (packed) continue;
    const std::string theirs = block_member(places, place->first, false);
    result.put(theirs + (member.starts_with("output.") ? replaced(member, 0, "output.", "out_proj.") : member), tensor,
               given);
  }
  return result.take();
}

StateDict to_torch(const Layer& model) { return to_torch(model, model.state_dict()); }

}  // namespace regard::layers
