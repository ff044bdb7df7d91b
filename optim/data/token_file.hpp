// Token files: the ids of a text on disk, for texts larger than memory.
//
// A file is a header of 64 bytes (magic, version, bytes an id, vocabulary size, count, fingerprint; little-endian) and
// the ids, two bytes each where the vocabulary is at most 65536, else four.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <regard/autograd/file.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::data {

/// Writes a token file in pieces. It takes its name only in commit(): before, and when an exception passes by, what
/// was at `path` is untouched.
class TokenFileWriter {
 public:
  /// `vocabulary`: 1 to 2^32. `fingerprint` is the caller's to choose: for example a hash of the text and tokenizer,
  /// by which to find out later whether the file is still theirs.
  TokenFileWriter(const std::filesystem::path& path, int64_t vocabulary, uint64_t fingerprint = 0);

  /// A ValueError names an id outside of the vocabulary.
  void write(const std::vector<int64_t>& ids);
  void commit();
  int64_t count() const { return count_; }

 private:
  std::filesystem::path path_;
  AtomicFile file_;
  int64_t vocabulary_;
  uint64_t fingerprint_;
  int64_t count_ = 0;
  std::vector<char> buffer_;
};

void write_token_file(const std::filesystem::path& path, const std::vector<int64_t>& ids, int64_t vocabulary,
                      uint64_t fingerprint = 0);

/// A token file, mapped into memory: only the pages that are read take any, and the system gives them back under
/// pressure. A FileError names a file that is foreign, cut off or longer than its header says.
///
/// Each read() looks at the file's size first, so that one which was cut off meanwhile is a FileError and no crash.
/// (A file that is cut off in the very moment of the copying cannot be guarded against; Regard never does that: it
/// replaces files whole, and a mapping keeps the old one.)
class TokenFile {
 public:
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  int64_t size() const { return count_; }
  int64_t vocabulary() const { return vocabulary_; }
  uint64_t fingerprint() const { return fingerprint_; }
  const std::filesystem::path& path() const { return path_; }

  /// The ids [begin, begin + count). IndexError outside of the file; FileError where an id in the file is not below its
  /// vocabulary.
  std::vector<int64_t> read(int64_t begin, int64_t count) const;
  void read(int64_t begin, int64_t count, int64_t* to) const;
  int64_t operator[](int64_t index) const { return read(index, 1)[0]; }

  /// Rows of `length` ids, one beginning at each of `begins`: i64 [begins.size(), length].
  Tensor windows(const std::vector<int64_t>& begins, int64_t length) const;

 private:
  void release();

  std::filesystem::path path_;
  int file_ = -1;
  const unsigned char* data_ = nullptr;  // of the whole file
  uint64_t bytes_ = 0;
  int64_t count_ = 0, vocabulary_ = 0;
  uint64_t fingerprint_ = 0;
  int width_ = 2;
};

}  // namespace regard::data
