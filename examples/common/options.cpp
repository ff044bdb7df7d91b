#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <new>
#include <regard/autograd/cuda.hpp>
#include <regard/autograd/error.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/utf8.hpp>
#include <utility>

namespace examples {
namespace {

namespace po = boost::program_options;

template <typename T>
std::string number_text(T value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;  // shortest text that reads back the same
  return {buffer, end};
}

template <typename T>
std::string limits_text(const Bounds<T>& bounds) {
  std::string text;
  const auto add = [&](const char* words, const std::optional<T>& bound) {
    if (bound) text += (text.empty() ? "" : " and ") + std::string(words) + " " + number_text(*bound);
  };
  add("at least", bounds.at_least);
  add("above", bounds.above);
  add("at most", bounds.at_most);
  add("below", bounds.below);
  return text;
}

template <typename T>
T read_number(const std::string& name, const std::string& text, const Bounds<T>& bounds) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const char* kind = std::is_integral_v<T> ? "an integer" : "a number";
  if (error == std::errc::result_out_of_range && stopped == end)
    throw UsageError(name, in_quotes(text) + " is too large or too small to be represented");
  bool good = error == std::errc() && stopped == end;
  if constexpr (!std::is_integral_v<T>) good = good && std::isfinite(value);
  if (!good) throw UsageError(name, in_quotes(text) + " is not " + kind);
  if ((bounds.at_least && value < *bounds.at_least) || (bounds.above && value <= *bounds.above) ||
      (bounds.at_most && value > *bounds.at_most) || (bounds.below && value >= *bounds.below))
    throw UsageError(name, text + " is out of range; it must be " + limits_text(bounds));
  return value;
}

// The number of letters to insert, remove, change or swap with their neighbour to make `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// Words filled into lines that begin at column `indent` and end before column 80; the first line is begun already.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const std::size_t width = from_utf8_lossy(word).size();
    if (column > indent && column + 1 + width > 79) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width;
    at = end + 1;
  }
  return result;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    // An abbreviation is as good as one wrong letter: whoever types --step means --steps.
    if (word.size() >= 2 && candidate.starts_with(word)) distance = std::min<std::size_t>(distance, 1);
    const std::size_t allowed = std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance > allowed || distance >= std::max(word.size(), candidate.size())) continue;
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

regard::Device device_named(const std::string& name) {
  try {
    return regard::parse_device(name);
  } catch (const regard::DeviceError& error) {
    constexpr std::string_view prefix = "device: ";
    std::string_view message = error.what();
    if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
    throw UsageError("device", message);
  }
}

Options::Options(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)), sections_{"Options"} {}

void Options::section(std::string heading) { sections_.push_back(std::move(heading)); }

void Options::declare(Option option) {
  if (option.name == "help" || find(option.name) != nullptr)
    throw std::invalid_argument("Options: --" + option.name + " is declared twice");
  option.section = sections_.size() - 1;
  options_.push_back(std::move(option));
}

void Options::integer(std::string name, int64_t& value, std::string explanation, Bounds<int64_t> bounds) {
  auto read = [name, bounds, &value](const std::string& text) -> std::function<void()> {
    return [&value, parsed = read_number(name, text, bounds)] { value = parsed; };
  };
  declare({name, "N", std::move(explanation), limits_text(bounds), number_text(value), 0, read});
}

void Options::integer(std::string name, std::optional<int64_t>& value, std::string explanation,
                      std::string default_in_words, Bounds<int64_t> bounds) {
  auto read = [name, bounds, &value](const std::string& text) -> std::function<void()> {
    return [&value, parsed = read_number(name, text, bounds)] { value = parsed; };
  };
  declare({name, "N", std::move(explanation), limits_text(bounds), std::move(default_in_words), 0, read});
}

void Options::real(std::string name, double& value, std::string explanation, Bounds<double> bounds) {
  auto read = [name, bounds, &value](const std::string& text) -> std::function<void()> {
    return [&value, parsed = read_number(name, text, bounds)] { value = parsed; };
  };
  declare({name, "X", std::move(explanation), limits_text(bounds), number_text(value), 0, read});
}

void Options::real(std::string name, std::optional<double>& value, std::string explanation,
                   std::string default_in_words, Bounds<double> bounds) {
  auto read = [name, bounds, &value](const std::string& text) -> std::function<void()> {
    return [&value, parsed = read_number(name, text, bounds)] { value = parsed; };
  };
  declare({name, "X", std::move(explanation), limits_text(bounds), std::move(default_in_words), 0, read});
}

void Options::text(std::string name, std::string& value, std::string explanation, std::string placeholder) {
  auto read = [&value](const std::string& text) -> std::function<void()> { return [&value, text] { value = text; }; };
  declare({name, std::move(placeholder), std::move(explanation), "", value, 0, read});
}

void Options::text(std::string name, std::optional<std::string>& value, std::string explanation,
                   std::string default_in_words, std::string placeholder) {
  auto read = [&value](const std::string& text) -> std::function<void()> { return [&value, text] { value = text; }; };
  declare({name, std::move(placeholder), std::move(explanation), "", std::move(default_in_words), 0, read});
}

void Options::texts(std::string name, std::vector<std::string>& values, std::string explanation,
                    std::string default_in_words, std::string placeholder) {
  auto read_all = [&values](const std::vector<std::string>& given) -> std::function<void()> {
    return [&values, given] { values = given; };
  };
  declare({name, placeholder + "...", std::move(explanation), "", std::move(default_in_words), 0, {}, false, read_all});
}

void Options::choice(std::string name, std::string& value, std::vector<std::string> choices, std::string explanation) {
  auto read = [name, choices, &value](const std::string& text) -> std::function<void()> {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      const auto guess = nearest(text, choices);
      throw UsageError(name, in_quotes(text) + " is not " + joined(choices) +
                                 (guess ? " (did you mean " + *guess + "?)" : std::string()));
    }
    return [&value, text] { value = text; };
  };
  declare({name, "NAME", std::move(explanation), joined(choices), value, 0, read});
}

void Options::device(std::optional<std::string>& value, std::string default_in_words) {
  auto read = [&value](const std::string& text) -> std::function<void()> {
    return [&value, name = to_string(device_named(text))] { value = name; };
  };
  declare({"device", "NAME",
           "what to compute on: the processor, cpu, or a GPU, cuda (the first one, cuda:0) or cuda:N, where "
           "Regard was built for it",
           "", std::move(default_in_words), 0, read});
}

void Options::flag(std::string name, bool& value, std::string explanation) {
  auto read = [&value](const std::string&) -> std::function<void()> { return [&value] { value = true; }; };
  declare({name, "", std::move(explanation), "", value ? "on" : "off", 0, read});
}

void Options::arguments(std::string placeholder, std::vector<std::string>& values, std::string explanation) {
  arguments_ = {std::move(placeholder), std::move(explanation), &values};
}

const Options::Option* Options::find(std::string_view name) const {
  const auto found = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
  return found == options_.end() ? nullptr : &*found;
}

bool Options::given(std::string_view name) const {
  const Option* option = find(name);
  if (option == nullptr) throw std::invalid_argument("Options: --" + std::string(name) + " was never declared");
  return option->given;
}

std::string Options::unknown(const std::string& token) const {
  const std::string name = token.substr(std::min(token.find_first_not_of('-'), token.size()));
  std::vector<std::string> known{"help"};
  for (const Option& option : options_) known.push_back(option.name);
  const auto guess = nearest(name.substr(0, name.find('=')), known);
  const std::string shown = in_quotes(token.substr(0, token.find('=')));
  return shown.substr(1, shown.size() - 2) + ": unknown option" + (guess ? " (did you mean --" + *guess + "?)" : "");
}

bool Options::parse(int argc, const char* const* argv, std::ostream& out) {
  po::options_description description;
  description.add_options()("help", "");
  for (const Option& option : options_) {
    if (option.placeholder.empty())
      description.add_options()(option.name.c_str(), "");
    else if (option.read_all)
      description.add_options()(option.name.c_str(), po::value<std::vector<std::string>>()->multitoken(), "");
    else
      description.add_options()(option.name.c_str(), po::value<std::string>(), "");
  }

  // No abbreviations (a --step that silently means --steps breaks when --step-size comes along) and no short options.
  namespace style = po::command_line_style;
  const int long_options = style::allow_long | style::long_allow_adjacent | style::long_allow_next;
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  po::parsed_options parsed(&description);
  try {
    parsed = po::command_line_parser(arguments).options(description).style(long_options).allow_unregistered().run();
  } catch (const po::invalid_command_line_syntax& error) {
    std::string name = error.get_option_name();
    name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
    if (error.kind() == po::invalid_syntax::extra_parameter) throw UsageError(name, "takes no value");
    throw UsageError(name, "needs a value");
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }

  for (const auto& item : parsed.options) {
    const bool many = item.position_key < 0 && item.value.size() > 1;  // `--text a.txt -h`
    const bool short_help = (many || item.position_key >= 0) && !item.value.empty() && item.value.back() == "-h";
    if (item.string_key != "help" && !short_help) continue;
    out << help();
    return false;
  }
  std::vector<std::function<void()>> writes;
  std::vector<std::string> names, others;
  for (const auto& item : parsed.options) {
    const std::string token = item.original_tokens.empty() ? std::string() : item.original_tokens[0];
    if (item.unregistered) throw UsageError(unknown(token));
    if (item.position_key >= 0) {
      if (token.size() > 1 && token[0] == '-') throw UsageError(unknown(token));
      if (arguments_) {
        others.push_back(token);
        continue;
      }
      throw UsageError(in_quotes(token) + ": unexpected argument; values follow their option, as in --name value");
    }
    const Option& option = *find(item.string_key);
    if (std::find(names.begin(), names.end(), option.name) != names.end())
      throw UsageError(option.name, "given more than once");
    if (option.read_all) {
      for (const std::string& each : item.value)
        if (each.empty() || (item.original_tokens.size() > 1 && each.starts_with("--")))
          throw UsageError(option.name, "needs a value");
      writes.push_back(option.read_all(item.value));
      names.push_back(option.name);
      continue;
    }
    const std::string value = item.value.empty() ? std::string() : item.value[0];
    const bool separate = item.original_tokens.size() == 2;  // `--steps --batch 8` lacks a value; `--name=--x` has one
    if (!option.placeholder.empty() && (value.empty() || (separate && value.starts_with("--"))))
      throw UsageError(option.name, "needs a value");
    writes.push_back(option.read(value));
    names.push_back(option.name);
  }
  for (Option& option : options_) option.given = std::find(names.begin(), names.end(), option.name) != names.end();
  for (const auto& write : writes) write();
  if (arguments_) *arguments_->values = std::move(others);
  return true;
}

std::string Options::help() const {
  std::size_t widest = std::string("--help").size();
  const auto left = [](const Option& o) { return "--" + o.name + (o.placeholder.empty() ? "" : " " + o.placeholder); };
  for (const Option& option : options_) widest = std::max(widest, left(option).size());
  const std::size_t column = std::min<std::size_t>(widest, 26) + 4;

  const auto line = [&](const std::string& name, const std::string& explanation) {
    std::string text = "  " + name;
    text += text.size() + 2 > column ? "\n" + std::string(column, ' ') : std::string(column - text.size(), ' ');
    return text + wrapped(explanation, column) + "\n";
  };
  std::string text = wrapped(program_ + ": " + summary_, 0) + "\n\nUsage: " + program_ + " [options]" +
                     (arguments_ ? " [" + arguments_->placeholder + "...]\n" : "\n");
  if (arguments_) text += "\n" + line(arguments_->placeholder, arguments_->explanation);
  for (std::size_t section = 0; section < sections_.size(); ++section) {
    const auto in_section = [&](const Option& option) { return option.section == section; };
    if (std::none_of(options_.begin(), options_.end(), in_section)) continue;
    text += "\n" + sections_[section] + ":\n";
    for (const Option& option : options_) {
      if (!in_section(option)) continue;
      std::string notes = option.limits;
      if (!option.default_in_words.empty()) {
        if (!notes.empty()) notes += "; ";
        notes += "default: " + option.default_in_words;
      }
      text += line(left(option), option.explanation + (notes.empty() ? "" : " (" + notes + ")"));
    }
  }
  return text + "\n" + line("--help", "show this text");
}

int run_main(std::string_view name, int argc, char** argv, const std::function<int(int, char**)>& body) {
  std::string message;
  try {
    const int status = body(argc, argv);
    std::cout.flush();
    if (std::cout && std::fflush(stdout) == 0) return status;
    message = "cannot write to standard output";
  } catch (const UsageError& error) {
    message = std::string(error.what()) + "; see --help";
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an unknown error";
  }
  std::cout.flush();
  std::fflush(stdout);
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(name.size()), name.data(), one_line(message).c_str());
  return 2;
}

}  // namespace examples
