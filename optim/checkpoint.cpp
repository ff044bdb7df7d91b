#include <regard/optim/checkpoint.hpp>

#include <cxxabi.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <typeinfo>
#include <utility>

#include <regard/autograd/error.hpp>
#include <regard/autograd/file.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/version.hpp>
#include <regard/optim/checkpoint_files.hpp>

namespace regard::optim {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* format_name = "regard checkpoint";
constexpr int format_version = 1;

template <class... Parts>
[[noreturn]] void refuse(const fs::path& path, const Parts&... parts) {
  fail<FileError>("checkpoint", path.string(), ": ", parts...);
}

// `AdamW`: the type's name alone.
std::string kind_of(const Optimizer& optimizer) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(optimizer).name(), nullptr, nullptr, &status),
                                              std::free);
  std::string text = status == 0 ? name.get() : typeid(optimizer).name();
  const std::string plain = text.substr(0, text.find('<'));
  const size_t colons = plain.rfind("::");
  return colons == std::string::npos ? plain : plain.substr(colons + 2);
}

void check_extra_name(const std::string& name) {
  check<ValueError>(!name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.size() <= 100 &&
                        name != "model" && name != "optimizer",
                    "checkpoint", "'", name,
                    "' cannot be the name of extra tensors: it becomes a file's name beside model and optimizer");
}

Json generator_json(const Generator& generator) { return {{"seed", generator.seed()}, {"offset", generator.offset()}}; }

// ---- Writing

Json state_json(const TrainingState& state, std::optional<double> metric) {
  Json json;
  json["format"] = format_name;
  json["format_version"] = format_version;
  json["regard"] = version;
  json["step"] = state.step;
  json["metric"] = metric && std::isfinite(*metric) ? Json(*metric) : Json(nullptr);
  if (state.optimizer != nullptr) json["optimizer"] = kind_of(*state.optimizer);
  if (state.schedule != nullptr) json["schedule"] = {{"step", state.schedule->current_step()}};
  if (state.generator != nullptr) json["generator"] = generator_json(*state.generator);
  json["generators"] = Json::object();
  for (const auto& [name, generator] : state.generators) json["generators"][name] = generator_json(*generator);
  try {
    json["data"] = Json::parse(state.data);
  } catch (const nlohmann::json::exception& error) {
    fail<ValueError>("save_checkpoint", "the state's data is no JSON text: ", error.what());
  }
  return json;
}

void write_into(const fs::path& folder, const TrainingState& state, Json json) {
  const auto write = [&](const std::string& name, const StateDict& tensors) {
    const fs::path path = folder / (name + ".safetensors");
    save_safetensors(path, tensors);
    json["files"][name + ".safetensors"] = fs::file_size(path);
    detail::checkpoint_stage((name + " written").c_str());
  };
  json["files"] = Json::object();
  write("model", state.model.state_dict());
  if (state.optimizer != nullptr) write("optimizer", state.optimizer->state_dict());
  for (const auto& [name, tensors] : state.extra) write(name, tensors);
  write_file_atomically(folder / "state.json", json.dump(2) + "\n");
  detail::checkpoint_stage("state written");
}

// ---- Reading

struct Read {
  CheckpointInfo info;
  Json json;
};

Read read_state(const fs::path& path) {
  const fs::path file = path / "state.json";
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::not_found) refuse(path, "there is no such folder");
  if (type != fs::file_type::directory) refuse(path, "it is no folder; a checkpoint is one, with state.json in it");
  if (!fs::exists(file, error)) refuse(path, "there is no state.json in it: it is no checkpoint, or not whole");

  InputFile input(file);
  if (input.size() > (uint64_t{1} << 28)) refuse(file, "it has ", input.size(), " bytes: this is no checkpoint's");
  std::string text(static_cast<size_t>(input.size()), '\0');
  input.read(0, text.data(), text.size());
  Read read;
  read.info.path = path;
  try {
    read.json = Json::parse(text);
    const Json& json = read.json;
    if (!json.is_object() || json.value("format", "") != format_name)
      refuse(file, "it is not of a checkpoint: it has no \"format\": \"", format_name, "\"");
    if (const auto given = json.at("format_version").get<int64_t>(); given != format_version)
      refuse(file, "it has version ", given, " of the format; version ", format_version, " is read here");
    read.info.step = json.at("step").get<int64_t>();
    if (read.info.step < 0) refuse(file, "step ", read.info.step, " is negative");
    if (!json.at("metric").is_null()) read.info.metric = json.at("metric").get<double>();
    json.at("data");
    if (!json.at("files").contains("model.safetensors")) refuse(file, "it names no model.safetensors");
    for (const auto& [name, bytes] : json.at("files").items()) {
      if (name.find('/') != std::string::npos) refuse(file, "'", name, "' is no file's name");
      const uint64_t there = fs::file_size(path / name, error);
      if (error) refuse(path / name, "it is missing, or cannot be read: ", error.message());
      if (there != bytes.get<uint64_t>())
        refuse(path / name, "it has ", there, " bytes; ", bytes.get<uint64_t>(),
               " were written: it is cut off, or not ", "this checkpoint's");
    }
  } catch (const nlohmann::json::exception& problem) {
    refuse(file, "it is damaged, or not of a checkpoint: ", problem.what());
  }
  return read;
}

// Names and shapes of `given` against those that are wanted.
void check_tensors(const fs::path& file, const StateDict& given, const StateDict& wanted, const std::string& whose) {
  std::string missing, unexpected, mismatched;
  int64_t faults = 0;
  const auto add = [&](std::string& list, const std::string& text) {
    if (++faults <= 12) list += (list.empty() ? "" : ", ") + text;
  };
  for (const auto& [name, tensor] : wanted) {
    const auto found = given.find(name);
    if (found == given.end())
      add(missing, name);
    else if (found->second.shape() != tensor.shape())
      add(mismatched,
          name + " is " + to_string(found->second.shape()) + ", " + whose + "'s " + to_string(tensor.shape()));
    else if (is_floating(found->second.dtype()) != is_floating(tensor.dtype()))
      add(mismatched,
          name + " is " + to_string(found->second.dtype()) + ", " + whose + "'s " + to_string(tensor.dtype()));
  }
  for (const auto& [name, tensor] : given)
    if (!wanted.contains(name)) add(unexpected, name);
  if (faults == 0) return;
  std::string text;
  for (const auto& [title, list] : {std::pair<const char*, std::string&>{"of another shape: ", mismatched},
                                    {"missing: ", missing},
                                    {"unexpected: ", unexpected}})
    if (!list.empty()) text += (text.empty() ? "" : "; ") + (title + list);
  if (faults > 12) text += "; and " + std::to_string(faults - 12) + " more";
  refuse(file, "it does not fit ", whose, ": ", text);
}

std::pair<uint64_t, uint64_t> generator_state(const Json& json) {
  return {json.at("seed").get<uint64_t>(), json.at("offset").get<uint64_t>()};
}

}  // namespace

void save_checkpoint(const fs::path& path, const TrainingState& state, std::optional<double> metric) {
  check<ValueError>(state.step >= 0, "save_checkpoint", "step ", state.step, " is negative");
  for (const auto& [name, tensors] : state.extra) check_extra_name(name);
  for (const auto& [name, generator] : state.generators)
    check<ValueError>(generator != nullptr, "save_checkpoint", "generator '", name, "' is null");
  Json json = state_json(state, metric);

  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found)
    refuse(path, "there is something of that name already");
  const fs::path partial = detail::partial_name(path);
  fs::create_directories(partial, error);
  if (error) refuse(path, "cannot create a folder for it: ", error.message());
  detail::checkpoint_stage("folder made");
  try {
    write_into(partial, state, std::move(json));  // every file flushed
    detail::sync_folder(partial);
    detail::checkpoint_stage("folder flushed");
    fs::rename(partial, path, error);
    if (error) refuse(path, "cannot take the name: ", error.message());
  } catch (...) {
    fs::remove_all(partial, error);
    throw;
  }
  detail::checkpoint_stage("renamed");
  detail::sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  detail::checkpoint_stage("done");
}

CheckpointInfo inspect_checkpoint(const fs::path& path, std::string* data) {
  Read read = read_state(path);
  if (data != nullptr) *data = read.json["data"].dump();
  return read.info;
}

CheckpointInfo load_checkpoint(const fs::path& path, TrainingState& state) {
  const Read read = read_state(path);
  const Json& json = read.json;
  const fs::path file = path / "state.json";

  // Everything is read and checked ...
  const StateDict model = load_safetensors(path / "model.safetensors");
  check_tensors(path / "model.safetensors", model, state.model.state_dict(), "the model");

  std::map<std::string, StateDict> extra;
  for (const auto& [name, bytes] : json.at("files").items()) {
    const std::string stem = fs::path(name).stem().string();
    if (stem == "model" || stem == "optimizer") continue;
    extra[stem] = load_safetensors(path / name);
  }
  for (const auto& [name, wanted] : state.extra) {
    if (!extra.contains(name)) refuse(path, "there is no ", name, ".safetensors in it, which this training keeps");
    if (!wanted.empty()) check_tensors(path / (name + ".safetensors"), extra[name], wanted, "'" + name + "'");
  }

  int64_t schedule_step = 0;
  std::optional<std::pair<uint64_t, uint64_t>> generator;
  std::vector<std::pair<Generator*, std::pair<uint64_t, uint64_t>>> generators;
  try {
    if (state.schedule != nullptr) {
      if (!json.contains("schedule")) refuse(file, "it has no schedule's state, and this training has a schedule");
      schedule_step = json.at("schedule").at("step").get<int64_t>();
      if (schedule_step < 0) refuse(file, "the schedule's step ", schedule_step, " is negative");
    }
    if (state.generator != nullptr) {
      if (!json.contains("generator")) refuse(file, "it has no generator's state, and this training has a generator");
      generator = generator_state(json.at("generator"));
    }
    for (const auto& [name, own] : state.generators) {
      if (!json.at("generators").contains(name)) refuse(file, "it has no state of the generator '", name, "'");
      generators.emplace_back(own, generator_state(json.at("generators").at(name)));
    }
  } catch (const nlohmann::json::exception& problem) {
    refuse(file, "it is damaged: ", problem.what());
  }

  StateDict optimizer;
  const fs::path optimizer_file = path / "optimizer.safetensors";
  if (state.optimizer != nullptr) {
    if (!json.at("files").contains("optimizer.safetensors"))
      refuse(path, "there is no optimizer.safetensors in it, and this training has an optimizer");
    if (const Json kind = json.value("optimizer", Json("")); kind != kind_of(*state.optimizer))
      refuse(file, "its optimizer is ", kind.is_string() ? kind.get<std::string>() : kind.dump(),
             ", this training's is ", kind_of(*state.optimizer));
    optimizer = load_safetensors(optimizer_file);
    // ... the optimizer checks its own, and changes nothing where it refuses ...
    try {
      state.optimizer->load_state_dict(optimizer);
    } catch (const Error& problem) {
      refuse(optimizer_file, "it does not fit the optimizer: ", problem.what());
    }
  }
  // ... and from here on nothing can fail.
  if (state.schedule != nullptr) state.schedule->load_state_dict({{"step", scalar_tensor(schedule_step)}});
  state.model.load_state_dict(model);
  if (generator) state.generator->set_state(generator->first, generator->second);
  for (const auto& [own, values] : generators) own->set_state(values.first, values.second);
  state.step = read.info.step;
  state.data = json.at("data").dump();
  state.extra = std::move(extra);
  return read.info;
}

}  // namespace regard::optim
