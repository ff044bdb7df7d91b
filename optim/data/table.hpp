// Tables of text: CSV and TSV.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <regard/optim/data/text_file.hpp>

namespace regard::data {

struct TableOptions {
  char separator = 0;                   ///< 0: a tab where the file's name ends with .tsv or .tab, else a comma
  bool header = true;                   ///< whether the first row names the columns
  std::optional<bool> quotes = {};      ///< whether fields may be quoted; not set: unless the separator is a tab
  std::optional<int64_t> columns = {};  ///< how many there must be; not set: as many as in the first row
};

/// Reads a table row by row, whatever its size. Quoted fields as in RFC 4180: "..." may hold separators, line ends and
/// quotes, written twice. Lines end with \n or \r\n; a byte order mark at the beginning is dropped, and so are empty
/// lines at the end; elsewhere an empty line is refused (a row of one empty field is written ""). A FileError names
/// file and line, `file.csv:12: ...`: text that is not UTF-8, a zero byte, a row with another number of fields, a quote
/// that stands inside a field or is never closed, an empty file.
class TableReader {
 public:
  explicit TableReader(const std::filesystem::path& path, const TableOptions& options = {});
  ~TableReader();
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  /// The names in the header; empty without one.
  const std::vector<std::string>& columns() const { return columns_; }
  /// Where a column stands, from 0. A FileError says which there are where there is none of that name.
  size_t column(std::string_view name) const;

  /// The next row, or false after the last.
  bool next(std::vector<std::string>& row);
  /// The line, from 1, on which the last row began.
  int64_t line() const { return row_line_; }
  /// Throws a FileError about the last row, `file:line: what`: for what a program finds wrong in it.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  bool read_row(std::vector<std::string>& row);
  [[noreturn]] void refuse_line(int64_t line, const std::string& what) const;

  LineReader lines_;
  TableOptions options_;
  std::vector<std::string> columns_;
  int64_t width_ = 0;     // fields in a row
  int64_t row_line_ = 0;  // where the last row began
};

struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};
/// All of it.
Table read_table(const std::filesystem::path& path, const TableOptions& options = {});

}  // namespace regard::data
