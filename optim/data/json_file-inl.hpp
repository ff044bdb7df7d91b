// Reads configuration files in JSON: errors name file and key. For sources only: nlohmann/json is no part of Regard's
// interface.
#pragma once

#include <concepts>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include <regard/autograd/error.hpp>
#include <regard/autograd/file.hpp>

namespace regard {

/// A JSON object and the file it came from.
struct JsonFile {
  std::filesystem::path path;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();

  static JsonFile read(const char* op, const std::filesystem::path& path) {
    InputFile file(path);
    check<FileError>(file.size() <= (uint64_t{1} << 30), op, path.string(), ": ", file.size(),
                     " bytes are too many for a configuration");
    std::string text(file.size(), '\0');
    file.read(0, text.data(), text.size());
    JsonFile result{path};
    try {
      result.json = nlohmann::ordered_json::parse(text);
    } catch (const nlohmann::json::parse_error& error) {
      fail<FileError>(op, path.string(), ": no JSON: byte ", error.byte, " is not as it should be");
    }
    check<FileError>(result.json.is_object(), op, path.string(), ": should hold a JSON object");
    return result;
  }

  bool has(const char* key) const { return json.contains(key) && !json.at(key).is_null(); }

  /// The value of a key, or `otherwise` where it is missing or null.
  template <class T>
  T get(const char* op, const char* key, T otherwise) const {
    return has(key) ? typed<T>(op, key, json.at(key)) : otherwise;
  }
  template <class T>
  T require(const char* op, const char* key) const {
    check<FileError>(has(key), op, path.string(), ": '", key, "' is missing");
    return typed<T>(op, key, json.at(key));
  }
  /// The same of any value inside; `key` is what the error calls it.
  template <class T>
  T typed(const char* op, const std::string& key, const nlohmann::ordered_json& value) const {
    bool ok = false;
    const char* wanted = "";
    if constexpr (std::same_as<T, bool>) {
      ok = value.is_boolean();
      wanted = "true or false";
    } else if constexpr (std::integral<T>) {
      ok = value.is_number_integer();
      wanted = "an integer";
    } else if constexpr (std::floating_point<T>) {
      ok = value.is_number();
      wanted = "a number";
    } else {
      ok = value.is_string();
      wanted = "a text";
    }
    check<FileError>(ok, op, path.string(), ": '", key, "' is ", value.dump().substr(0, 60), ", and should be ",
                     wanted);
    return value.get<T>();
  }
};

}  // namespace regard
