#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <regard/examples/common/labelled_lines.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/optim/data/text_file.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

[[noreturn]] void refuse(const std::filesystem::path& path, int64_t line, const std::string& what) {
  throw UsageError(path.string() + ":" + std::to_string(line) + ": " + what);
}

struct RawLine {
  std::string label, text;
  int64_t number;
};

std::vector<RawLine> read_raw(const std::filesystem::path& path, int64_t& repeated) {
  regard::data::LineReader reader(path);
  std::vector<RawLine> lines;
  std::set<std::pair<std::string, std::string>> seen;
  std::string line;
  while (reader.next(line)) {
    if (trimmed(line).empty()) continue;
    const size_t tab = line.find('\t');
    if (tab == std::string::npos)
      refuse(path, reader.number(), "no tab in " + in_quotes(line) + "; a line is a label, a tab and a text");
    RawLine raw{trimmed(line.substr(0, tab)), trimmed(line.substr(tab + 1)), reader.number()};
    if (raw.label.empty()) refuse(path, raw.number, "the label before the tab is empty");
    if (raw.text.empty()) refuse(path, raw.number, "the text behind the tab is empty");
    if (seen.emplace(raw.label, raw.text).second)
      lines.push_back(std::move(raw));
    else
      ++repeated;
  }
  if (lines.empty()) throw UsageError(path.string() + ": holds no labelled line");
  return lines;
}

}  // namespace

LabelledLines read_labelled_lines(const std::filesystem::path& path, const std::vector<std::string>& labels) {
  LabelledLines result;
  result.labels = labels;
  for (RawLine& raw : read_raw(path, result.repeated)) {
    const auto found = std::lower_bound(labels.begin(), labels.end(), raw.label);
    if (found == labels.end() || *found != raw.label) {
      const auto meant = nearest(raw.label, labels);
      refuse(path, raw.number,
             "the label " + in_quotes(raw.label) + " is none of the " + std::to_string(labels.size()) + " there are" +
                 (meant ? "; did you mean " + in_quotes(*meant) + "?" : ""));
    }
    result.lines.push_back({std::move(raw.text), found - labels.begin()});
  }
  return result;
}

LabelledLines read_labelled_lines(const std::filesystem::path& path) {
  int64_t repeated = 0;
  std::set<std::string> labels;
  for (const RawLine& raw : read_raw(path, repeated)) labels.insert(raw.label);
  if (labels.size() < 2)
    throw UsageError(path.string() + ": every line has the label " + in_quotes(*labels.begin()) +
                     "; there is nothing to tell apart");
  return read_labelled_lines(path, {labels.begin(), labels.end()});
}

std::vector<LabelledLine> split_off(std::vector<LabelledLine>& lines, double share, uint64_t seed) {
  // Groups of equal texts, each with the class of its first line; classes in order, groups at random.
  std::map<std::string, std::vector<std::size_t>> by_text;
  for (std::size_t i = 0; i < lines.size(); ++i) by_text[lines[i].text].push_back(i);
  std::map<int64_t, std::vector<const std::vector<std::size_t>*>> by_class;
  for (const auto& [text, group] : by_text) by_class[lines[group.front()].label].push_back(&group);
  std::vector<bool> taken(lines.size(), false);
  for (auto& [label, groups] : by_class) {
    Random random(seed, 0x51, static_cast<uint64_t>(label));
    for (std::size_t i = groups.size(); i > 1; --i)
      std::swap(groups[i - 1], groups[static_cast<std::size_t>(random.below(static_cast<int64_t>(i)))]);
    std::size_t count = static_cast<std::size_t>(share * static_cast<double>(groups.size()) + 0.5);
    if (groups.size() >= 2)
      count = std::clamp<std::size_t>(count, 1, groups.size() - 1);
    else
      count = 0;
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t line : *groups[i]) taken[line] = true;
  }
  std::vector<LabelledLine> stay, go;
  for (std::size_t i = 0; i < lines.size(); ++i) (taken[i] ? go : stay).push_back(std::move(lines[i]));
  lines = std::move(stay);
  return go;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::string line;
  if (path != "-") {
    regard::data::LineReader reader(path);
    while (reader.next(line))
      if (std::string text = trimmed(line); !text.empty()) lines.push_back(std::move(text));
    return lines;
  }
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    try {
      from_utf8(line);
    } catch (const Utf8Error& error) {
      refuse("standard input", number, error.what());
    }
    if (std::string text = trimmed(line); !text.empty()) lines.push_back(std::move(text));
  }
  if (std::ferror(stdin) != 0) throw std::runtime_error("standard input: cannot be read");
  return lines;
}

}  // namespace examples
