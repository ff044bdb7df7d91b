#include <regard/optim/data/token_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <regard/autograd/error.hpp>

namespace regard::data {

static_assert(std::endian::native == std::endian::little, "token files are copied as they are: little-endian");

namespace {

constexpr std::array<char, 8> magic = {'R', 'G', 'D', 'T', 'O', 'K', 'E', 'N'};
constexpr uint32_t version = 1;
constexpr uint64_t largest_vocabulary = uint64_t{1} << 32;

struct Header {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t width = 0;  // bytes an id
  uint64_t vocabulary = 0;
  uint64_t count = 0;
  uint64_t fingerprint = 0;
  std::array<uint64_t, 3> reserved{};
};
static_assert(sizeof(Header) == 64);

uint32_t width_for(int64_t vocabulary) { return vocabulary <= 65536 ? 2 : 4; }

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

// ---- Writing

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocabulary, uint64_t fingerprint)
    : path_(path), file_(path), vocabulary_(vocabulary), fingerprint_(fingerprint) {
  check<ValueError>(vocabulary >= 1 && static_cast<uint64_t>(vocabulary) <= largest_vocabulary, "TokenFileWriter",
                    "vocabulary ", vocabulary, " must be from 1 to 2^32");
  const Header none;  // its place, until the count is known
  file_.write(&none, sizeof none);
}

void TokenFileWriter::write(const std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i)
    check<ValueError>(ids[i] >= 0 && ids[i] < vocabulary_, "TokenFileWriter", path_.string(), ": id ", ids[i],
                      " at place ", count_ + static_cast<int64_t>(i), " is outside of the vocabulary of ", vocabulary_);
  const auto copy = [&]<class Id>(Id) {
    buffer_.resize(ids.size() * sizeof(Id));
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<Id>(ids[i]);
      std::memcpy(buffer_.data() + i * sizeof id, &id, sizeof id);
    }
  };
  if (width_for(vocabulary_) == 2)
    copy(uint16_t{});
  else
    copy(uint32_t{});
  file_.write(buffer_.data(), buffer_.size());
  count_ += static_cast<int64_t>(ids.size());
}

void TokenFileWriter::commit() {
  Header header;
  header.magic = magic;
  header.version = version;
  header.width = width_for(vocabulary_);
  header.vocabulary = static_cast<uint64_t>(vocabulary_);
  header.count = static_cast<uint64_t>(count_);
  header.fingerprint = fingerprint_;
  file_.write_at(0, &header, sizeof header);
  file_.commit();
}

void write_token_file(const std::filesystem::path& path, const std::vector<int64_t>& ids, int64_t vocabulary,
                      uint64_t fingerprint) {
  TokenFileWriter writer(path, vocabulary, fingerprint);
  writer.write(ids);
  writer.commit();
}

// ---- Reading

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path) {
  const auto refuse = [&](const auto&... parts) {
    release();
    fail<FileError>("TokenFile", path.string(), ": ", parts...);
  };
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) refuse("cannot open: ", reason(errno));
  struct stat state {};
  if (::fstat(file_, &state) != 0) refuse("cannot read: ", reason(errno));
  if (!S_ISREG(state.st_mode)) refuse("it is not a regular file");
  bytes_ = static_cast<uint64_t>(state.st_size);
  Header header;
  const ssize_t got = ::pread(file_, &header, sizeof header, 0);
  if (got < 0) refuse("cannot read: ", reason(errno));
  if (got >= 8 ? header.magic != magic : bytes_ != 0) refuse("it is no token file: it does not begin with RGDTOKEN");
  if (got < static_cast<ssize_t>(sizeof header))
    refuse("it is cut off: it has ", bytes_, " bytes, and a token file's header has ", sizeof header);
  if (header.version != version)
    refuse("it has version ", header.version, " of the format; version ", version, " is read here");
  if (header.vocabulary < 1 || header.vocabulary > largest_vocabulary)
    refuse("its vocabulary of ", header.vocabulary, " is outside of 1 to 2^32");
  if (header.width != width_for(static_cast<int64_t>(header.vocabulary)))
    refuse("its ids have ", header.width, " bytes; with a vocabulary of ", header.vocabulary, " they should have ",
           width_for(static_cast<int64_t>(header.vocabulary)));
  const uint64_t room = bytes_ - sizeof header;
  if (header.count > room / header.width)
    refuse("it is cut off: ", header.count, " ids of ", header.width, " bytes should follow its header, but ", room,
           " bytes do");
  if (header.count * header.width != room)
    refuse(room - header.count * header.width, " bytes follow the ", header.count, " ids that it should have");
  count_ = static_cast<int64_t>(header.count);
  vocabulary_ = static_cast<int64_t>(header.vocabulary);
  fingerprint_ = header.fingerprint;
  width_ = static_cast<int>(header.width);
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, file_, 0);
  if (data == MAP_FAILED) refuse("cannot map it into memory: ", reason(errno));
  data_ = static_cast<const unsigned char*>(data);
}

TokenFile::~TokenFile() { release(); }

TokenFile::TokenFile(TokenFile&& other) noexcept { *this = std::move(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  file_ = std::exchange(other.file_, -1);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  count_ = std::exchange(other.count_, 0);
  vocabulary_ = other.vocabulary_;
  fingerprint_ = other.fingerprint_;
  width_ = other.width_;
  return *this;
}

void TokenFile::release() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), static_cast<size_t>(bytes_));
  if (file_ >= 0) ::close(file_);
  data_ = nullptr;
  file_ = -1;
}

void TokenFile::read(int64_t begin, int64_t count, int64_t* to) const {
  check<IndexError>(begin >= 0 && count >= 0 && begin <= count_ && count <= count_ - begin, "TokenFile", path_.string(),
                    ": ", count, " ids from ", begin, " on reach outside of its ", count_);
  if (count == 0) return;
  struct stat state {};
  check<FileError>(::fstat(file_, &state) == 0 && static_cast<uint64_t>(state.st_size) >= bytes_, "TokenFile",
                   path_.string(), ": it was cut off while it was in use: it had ", bytes_, " bytes and has ",
                   state.st_size);
  const auto copy = [&]<class Id>(Id) {
    const unsigned char* from = data_ + sizeof(Header) + static_cast<size_t>(begin) * sizeof(Id);
    for (int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, from + static_cast<size_t>(i) * sizeof id, sizeof id);
      to[i] = static_cast<int64_t>(id);
    }
  };
  if (width_ == 2)
    copy(uint16_t{});
  else
    copy(uint32_t{});
  for (int64_t i = 0; i < count; ++i)
    check<FileError>(to[i] < vocabulary_, "TokenFile", path_.string(), ": id ", to[i], " at place ", begin + i,
                     " is outside of its vocabulary of ", vocabulary_);
}

std::vector<int64_t> TokenFile::read(int64_t begin, int64_t count) const {
  std::vector<int64_t> ids(static_cast<size_t>(std::max<int64_t>(0, std::min(count, count_))));
  read(begin, count, ids.data());
  return ids;
}

Tensor TokenFile::windows(const std::vector<int64_t>& begins, int64_t length) const {
  check<ValueError>(!begins.empty() && length > 0, "TokenFile.windows", begins.size(), " windows of ", length,
                    " ids: both must be positive");
  for (int64_t begin : begins)
    check<IndexError>(begin >= 0 && length <= count_ && begin <= count_ - length, "TokenFile.windows", path_.string(),
                      ": ", length, " ids from ", begin, " on reach outside of its ", count_);
  Tensor rows = empty({static_cast<int64_t>(begins.size()), length}, DType::i64);
  auto* to = rows.data<int64_t>();
  for (size_t i = 0; i < begins.size(); ++i) read(begins[i], length, to + static_cast<int64_t>(i) * length);
  return rows;
}

}  // namespace regard::data
