#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <regard/autograd/device.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// A command line that cannot be followed. run_main() shows it with a pointer to --help.
struct UsageError : std::runtime_error {
  explicit UsageError(const std::string& message) : std::runtime_error(message) {}
  /// UsageError("heads", "3 does not divide the width, 64") reads `--heads: 3 does not divide the width, 64`.
  UsageError(std::string_view option, std::string_view message)
      : std::runtime_error("--" + std::string(option) + ": " + std::string(message)) {}
};

/// The values an option takes; what is not set is not bounded. `{.at_least = 0.0, .below = 1.0}` is [0, 1).
template <typename T>
struct Bounds {
  std::optional<T> at_least = std::nullopt;
  std::optional<T> above = std::nullopt;
  std::optional<T> at_most = std::nullopt;
  std::optional<T> below = std::nullopt;
};

/// The command line of an example program. Every option is a variable of the program: its value when it is declared
/// is the default that --help shows, and parse() writes what the user gave.
///
///     int64_t steps = 2000;
///     double dropout = 0.0;
///     Options options("train_sequence", "Trains a small transformer on a sequence task.");
///     options.section("Training");
///     options.integer("steps", steps, "optimizer steps", {.at_least = 0});
///     options.real("dropout", dropout, "share of activations dropped while training", {.at_least = 0, .below = 1});
///     if (!options.parse(argc, argv)) return 0;  // --help was asked for, and printed
///
/// An option whose default depends on others is a std::optional with its default in words; it stays empty unless the
/// user gives it. Values are read strictly and independently of the locale: "12x", "1e3" for an integer, "nan" and
/// "inf" are errors. Names are never abbreviated, and no option may be given twice.
class Options {
 public:
  Options(std::string program, std::string summary);

  /// Starts a group of options under a heading of its own in --help.
  void section(std::string heading);

  void integer(std::string name, int64_t& value, std::string explanation, Bounds<int64_t> bounds = {});
  void integer(std::string name, std::optional<int64_t>& value, std::string explanation, std::string default_in_words,
               Bounds<int64_t> bounds = {});
  void real(std::string name, double& value, std::string explanation, Bounds<double> bounds = {});
  void real(std::string name, std::optional<double>& value, std::string explanation, std::string default_in_words,
            Bounds<double> bounds = {});
  /// Any text but the empty one. `placeholder` stands for the value in --help: FILE, NAME, ...
  void text(std::string name, std::string& value, std::string explanation, std::string placeholder = "TEXT");
  void text(std::string name, std::optional<std::string>& value, std::string explanation, std::string default_in_words,
            std::string placeholder = "TEXT");
  /// One text or several, up to the next option: `--text a.txt b.txt`. Stays as it is unless given.
  void texts(std::string name, std::vector<std::string>& values, std::string explanation, std::string default_in_words,
             std::string placeholder = "TEXT");
  /// One of `choices`.
  void choice(std::string name, std::string& value, std::vector<std::string> choices, std::string explanation);
  /// --device, what to compute on: `cpu`, `cuda` or `cuda:N`. A device that is not there is an error in parse(), and so
  /// before a program reads or writes anything.
  void device(std::optional<std::string>& value, std::string default_in_words = "cpu");
  /// True where the option is given; takes no value.
  void flag(std::string name, bool& value, std::string explanation);
  /// What stands on the command line beside the options, in its order; without this it is an error.
  void arguments(std::string placeholder, std::vector<std::string>& values, std::string explanation);

  /// Reads the command line (argv[0] is skipped). Returns false where it holds --help or -h: the help has then been
  /// written to `out`, and no variable is changed. Throws UsageError at the first thing wrong, before any variable is
  /// changed: an unknown option (with the nearest known one), a missing or bad value, an argument that is no option.
  bool parse(int argc, const char* const* argv, std::ostream& out = std::cout);

  /// Whether the user gave this option. Throws std::invalid_argument for a name that was never declared.
  bool given(std::string_view name) const;

  /// The text of --help, wrapped to 80 columns.
  std::string help() const;

 private:
  struct Option {
    std::string name;
    std::string placeholder;  // empty for a flag
    std::string explanation;
    std::string limits;  // "at least 0"; may be empty
    std::string default_in_words;
    std::size_t section;  // index in sections_
    // Checks a value and returns what writes it, so that nothing is written before everything is checked.
    std::function<std::function<void()>(const std::string&)> read;
    bool given = false;
    // In place of `read`, for an option that takes several values.
    std::function<std::function<void()>(const std::vector<std::string>&)> read_all = {};
  };

  void declare(Option option);
  const Option* find(std::string_view name) const;
  std::string unknown(const std::string& token) const;

  std::string program_;
  std::string summary_;
  std::vector<std::string> sections_;
  std::vector<Option> options_;
  struct Arguments {
    std::string placeholder;
    std::string explanation;
    std::vector<std::string>* values;
  };
  std::optional<Arguments> arguments_;
};

/// The device that --device names so. Throws UsageError where there is none, which says why.
regard::Device device_named(const std::string& name);

/// Whichever of `candidates` is spelled most like `word`, if any is near enough to be what was meant.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The whole of an example's main(): runs body(argc, argv) and returns its exit status. An exception becomes one line
/// on standard error that begins with `name: `, and status 2; a UsageError's ends with `; see --help`. Output that
/// could not be written (a full disk, say) counts as an error too.
int run_main(std::string_view name, int argc, char** argv, const std::function<int(int, char**)>& body);

}  // namespace examples
