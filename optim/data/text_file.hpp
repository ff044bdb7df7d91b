// Text files in UTF-8, piece by piece or line by line, whatever their size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <regard/autograd/file.hpp>

namespace regard::data {

/// Reads a text in pieces, each of whole characters and, where a line is not longer than a piece, of whole lines. A
/// byte order mark at the beginning is dropped; line ends stay as they are. A FileError names the file: one that is
/// empty; one that holds a zero byte or is not UTF-8 is refused with line and byte, when reading gets there.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path, size_t piece_bytes = size_t{1} << 20);

  /// The next piece, or false at the end.
  bool next(std::string& piece);
  uint64_t size() const { return file_.size(); }   ///< bytes of the file
  uint64_t position() const { return position_; }  ///< bytes read so far
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  InputFile file_;
  size_t piece_bytes_;
  uint64_t position_ = 0;
  int64_t line_ = 1;  // of the byte at position_
};

/// The whole of a text file, with the same checks.
std::string read_text(const std::filesystem::path& path);

/// Lines without their ends, \n or \r\n, one after the other; the same checks as TextReader's.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path);
  /// The next line, or false at the end.
  bool next(std::string& line);
  int64_t number() const { return number_; }       ///< from 1, of the last line
  bool had_return() const { return had_return_; }  ///< whether the last line ended with \r\n
  const std::filesystem::path& path() const { return reader_.path(); }

 private:
  TextReader reader_;
  std::string piece_;
  size_t at_ = 0;
  bool ended_ = false;
  bool had_return_ = false;
  int64_t number_ = 0;
};

/// A number that tells contents of files apart: 64 bits of a hash, as 16 hexadecimal digits. Not safe against somebody
/// who makes up a file to have the same.
std::string file_fingerprint(const std::filesystem::path& path);

}  // namespace regard::data
