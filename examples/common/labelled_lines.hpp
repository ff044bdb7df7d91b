#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace examples {

/// A text and the class it belongs to, an index in LabelledLines::labels.
struct LabelledLine {
  std::string text;
  int64_t label = 0;
};

struct LabelledLines {
  std::vector<std::string> labels;  // in the order of their bytes
  std::vector<LabelledLine> lines;
  int64_t repeated = 0;  // lines left out because the same label and text were there before
};

/// Reads a file of lines `label<TAB>text` in UTF-8. Spaces around both are dropped, empty lines passed over, and a line
/// that says the same as an earlier one left out. An error names file and line: no tab, an empty label, an empty text.
LabelledLines read_labelled_lines(const std::filesystem::path& path);

/// The same, of a file whose labels must be among `labels`, by which they are numbered.
LabelledLines read_labelled_lines(const std::filesystem::path& path, const std::vector<std::string>& labels);

/// Takes about this share of the lines out, at random by the seed, as evenly over the classes as whole lines allow; of
/// each class with two lines or more at least one stays and one goes. Equal texts, under whatever labels, stay
/// together, so that nothing taken out is known from what stays.
std::vector<LabelledLine> split_off(std::vector<LabelledLine>& lines, double share, uint64_t seed);

/// The lines of a text file, or of standard input where `path` is "-": UTF-8, empty lines passed over.
std::vector<std::string> read_lines(const std::string& path);

}  // namespace examples
