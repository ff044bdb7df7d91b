#include <regard/optim/data/text_file.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

TextReader::TextReader(const std::filesystem::path& path, size_t piece_bytes)
    : path_(path), file_(path), piece_bytes_(std::max<size_t>(piece_bytes, 4)) {
  check<FileError>(file_.size() > 0, "read", path.string(), ": the file is empty");
  char begin[3];
  if (file_.size() >= 3) {
    file_.read(0, begin, 3);
    if (std::memcmp(begin, "\xEF\xBB\xBF", 3) == 0) position_ = 3;
  }
  check<FileError>(file_.size() > position_, "read", path.string(), ": there is nothing but a byte order mark");
}

bool TextReader::next(std::string& piece) {
  const uint64_t left = file_.size() - position_;
  piece.resize(static_cast<size_t>(std::min<uint64_t>(left, piece_bytes_)));
  if (left == 0) return false;
  file_.read(position_, piece.data(), piece.size());
  if (piece.size() < left) {
    const size_t line_end = piece.rfind('\n');
    if (line_end != std::string::npos)
      piece.resize(line_end + 1);
    else
      piece.resize(piece.size() - unfinished_character(piece));
  }

  const size_t zero = std::min(piece.find('\0'), piece.size());
  const size_t fault = std::min(zero, find_invalid_utf8(piece));
  if (fault < piece.size()) {
    line_ += std::count(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(fault), '\n');
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<unsigned char>(piece[fault])));
    fail<FileError>("read", path_.string(), ":", line_, ": byte ", position_ + fault, " of the file is ", byte,
                    fault == zero ? ": it is no text" : ", which begins no character: it is not in UTF-8");
  }
  line_ += std::count(piece.begin(), piece.end(), '\n');
  position_ += piece.size();
  return true;
}

std::string read_text(const std::filesystem::path& path) {
  TextReader reader(path);
  std::string text, piece;
  text.reserve(static_cast<size_t>(reader.size()));
  while (reader.next(piece)) text += piece;
  return text;
}

LineReader::LineReader(const std::filesystem::path& path) : reader_(path) {}

bool LineReader::next(std::string& line) {
  line.clear();
  while (true) {
    if (at_ == piece_.size()) {
      at_ = 0;
      ended_ = ended_ || !reader_.next(piece_);
      if (ended_) {
        piece_.clear();
        if (line.empty()) return false;
        break;  // the last line has no end
      }
    }
    const size_t end = piece_.find('\n', at_);
    line.append(piece_, at_, end == std::string::npos ? end : end - at_);
    at_ = end == std::string::npos ? piece_.size() : end + 1;
    if (end != std::string::npos) break;
  }
  had_return_ = line.ends_with('\r');
  if (had_return_) line.pop_back();
  ++number_;
  return true;
}

std::string file_fingerprint(const std::filesystem::path& path) {
  InputFile file(path);
  std::array<char, 1 << 16> buffer;
  uint64_t hash = 0xCBF29CE484222325U ^ file.size();
  for (uint64_t at = 0; at < file.size();) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size() - at));
    file.read(at, buffer.data(), bytes);
    for (size_t i = 0; i < bytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, buffer.data() + i, std::min<size_t>(8, bytes - i));
      hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 29;
    }
    at += bytes;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace regard::data
