#include <regard/optim/data/table.hpp>

#include <algorithm>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

TableOptions completed(const std::filesystem::path& path, TableOptions options) {
  if (options.separator == 0) {
    const std::string extension = path.extension().string();
    options.separator = extension == ".tsv" || extension == ".tab" ? '\t' : ',';
  }
  if (!options.quotes) options.quotes = options.separator != '\t';
  check<ValueError>(options.separator > 0 && options.separator != '\n' && options.separator != '\r' &&
                        (options.separator != '"' || !*options.quotes),
                    "TableReader", "the separator must be an ASCII character that is no line end and no quote");
  check<ValueError>(!options.columns || *options.columns > 0, "TableReader", "columns ", options.columns.value_or(0),
                    " must be positive");
  return options;
}

}  // namespace

TableReader::TableReader(const std::filesystem::path& path, const TableOptions& options)
    : lines_(path), options_(completed(path, options)), width_(options_.columns.value_or(0)) {
  if (!options_.header) return;
  if (!next(columns_)) refuse_line(1, "there is no header, only empty lines");
  for (size_t i = 0; i < columns_.size(); ++i)
    if (std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i), columns_[i]) !=
        columns_.begin() + static_cast<std::ptrdiff_t>(i))
      refuse("two columns are named " + in_quotes(columns_[i]));
}

TableReader::~TableReader() = default;

size_t TableReader::column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found == columns_.end()) {
    std::string there;
    for (const std::string& column : columns_) there += (there.empty() ? "" : ", ") + in_quotes(column);
    refuse_line(1, "there is no column " + in_quotes(name) +
                       (columns_.empty() ? ": the table is read without a header" : "; there are " + there));
  }
  return static_cast<size_t>(found - columns_.begin());
}

void TableReader::refuse_line(int64_t line, const std::string& what) const {
  throw FileError(lines_.path().string() + ":" + std::to_string(line) + ": " + what);
}

void TableReader::refuse(const std::string& what) const { refuse_line(row_line_, what); }

bool TableReader::next(std::vector<std::string>& row) {
  if (!read_row(row)) return false;
  const auto fields = static_cast<int64_t>(row.size());
  if (width_ == 0) width_ = fields;
  if (fields != width_)
    refuse(std::to_string(fields) + (fields == 1 ? " field; " : " fields; ") + std::to_string(width_) +
           (options_.columns ? " are expected" : " are expected, as in the first row"));
  return true;
}

bool TableReader::read_row(std::vector<std::string>& row) {
  row.clear();
  std::string text;
  if (!lines_.next(text)) return false;
  row_line_ = lines_.number();
  if (text.empty()) {  // at the end of the file, or a row of one empty field
    std::string more;
    while (more.empty())
      if (!lines_.next(more)) return false;
    refuse("the line is empty");
  }
  for (size_t at = 0;; ++at) {  // a field a time; `at` is where it begins
    std::string field;
    if (*options_.quotes && at < text.size() && text[at] == '"') {
      for (++at;;) {
        const size_t quote = text.find('"', at);
        if (quote == std::string::npos) {
          field.append(text, at);
          field += lines_.had_return() ? "\r\n" : "\n";
          if (!lines_.next(text)) refuse("a quote is opened in this row and never closed");
          at = 0;
          continue;
        }
        field.append(text, at, quote - at);
        at = quote + 1;
        if (at >= text.size() || text[at] != '"') break;
        field += '"';
        ++at;
      }
      if (at < text.size() && text[at] != options_.separator)
        refuse_line(lines_.number(), "there is text behind the closing quote of field " +
                                         std::to_string(row.size() + 1) +
                                         "; a quote inside of a quoted field is written twice");
    } else {
      const size_t end = std::min(text.find(options_.separator, at), text.size());
      field = text.substr(at, end - at);
      if (*options_.quotes && field.find('"') != std::string::npos)
        refuse_line(lines_.number(), "field " + std::to_string(row.size() + 1) +
                                         " holds a quote but does not begin with one; quote the whole field, and "
                                         "write the quote inside twice");
      at = end;
    }
    row.push_back(std::move(field));
    if (at >= text.size()) return true;
  }
}

Table read_table(const std::filesystem::path& path, const TableOptions& options) {
  TableReader reader(path, options);
  Table table;
  table.columns = reader.columns();
  for (std::vector<std::string> row; reader.next(row);) table.rows.push_back(std::move(row));
  return table;
}

}  // namespace regard::data
