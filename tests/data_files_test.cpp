// Text, tables and token files: what is read, and what is said of files that cannot be.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/table.hpp>
#include <regard/optim/data/text_file.hpp>
#include <regard/optim/data/token_file.hpp>
#include <regard/optim/data/unicode.hpp>

#include "test_folder.hpp"

namespace data_files_test {

using namespace regard;
using namespace regard::data;
using Catch::Contains;
using test::error_of;
using test::Folder;
namespace fs = std::filesystem;

namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string text_error(const std::string& bytes) {
  Folder folder;
  const fs::path path = folder.file("text.txt", bytes);
  return error_of<FileError>([&] { read_text(path); });
}

Rows rows_of(const std::string& bytes, TableOptions options = {}, const std::string& name = "table.csv") {
  Folder folder;
  return read_table(folder.file(name, bytes), options).rows;
}

std::string table_error(const std::string& bytes, TableOptions options = {}, const std::string& name = "table.csv") {
  Folder folder;
  const fs::path path = folder.file(name, bytes);
  return error_of<FileError>([&] { read_table(path, options); });
}

}  // namespace

TEST_CASE("a text is read whole or in pieces of whole lines and characters") {
  Folder folder;
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string characters[] = {"a", "b", " ", "é", "今", "🙂", "\n", "\r\n"};
  for (int round = 0; round < 60; ++round) {
    std::string text;
    const int length = 1 + static_cast<int>(random() % 200);
    for (int i = 0; i < length; ++i) text += characters[random() % (round % 3 == 0 ? 6 : 8)];
    const bool mark = round % 2 == 0;
    const fs::path path = folder.file("text.txt", (mark ? "\xEF\xBB\xBF" : "") + text);
    REQUIRE(read_text(path) == text);
    TextReader reader(path, 1 + random() % 40);
    std::string all, piece;
    while (reader.next(piece)) {
      REQUIRE_FALSE(piece.empty());
      REQUIRE(find_invalid_utf8(piece) == piece.size());
      all += piece;
    }
    REQUIRE(all == text);
    CHECK(reader.position() == reader.size());
    CHECK_FALSE(reader.next(piece));
  }
  const fs::path path = folder.file("lines.txt", "one\ntwo\r\n\nlast");
  LineReader lines(path);
  std::vector<std::string> read;
  for (std::string line; lines.next(line);) {
    read.push_back(line);
    CHECK(lines.number() == static_cast<int64_t>(read.size()));
  }
  CHECK(read == std::vector<std::string>{"one", "two", "", "last"});
  TextReader pieces(path, 9);
  std::string piece;
  REQUIRE(pieces.next(piece));
  CHECK(piece == "one\ntwo\r\n");
}

TEST_CASE("texts that are none are refused with line and byte") {
  CHECK_THAT(text_error(""), Contains("text.txt: the file is empty"));
  CHECK_THAT(text_error("\xEF\xBB\xBF"), Contains("byte order mark"));
  CHECK_THAT(text_error("one\ntwo\nthr\xFF"
                        "e"),
             Contains("text.txt:3: byte 11 of the file is 0xff") && Contains("UTF-8"));
  CHECK_THAT(text_error(std::string("a\n\0b", 4)),
             Contains("text.txt:2: byte 2 of the file is 0x00") && Contains("no text"));
  CHECK_THAT(text_error("cut off \xE4\xBB"), Contains("text.txt:1: byte 8 of the file is 0xe4"));
  // In a later piece.
  std::string text;
  for (int i = 0; i < 300000; ++i) text += "line\n";
  CHECK_THAT(text_error(text + "\xC0"), Contains(":300001: byte 1500000 of the file is 0xc0"));
  Folder folder;
  CHECK_THAT(error_of<FileError>([&] { read_text(folder.path); }), Contains("not a regular file"));
  CHECK_THAT(error_of<FileError>([&] { read_text(folder.path / "none"); }), Contains("none: cannot open"));
}

TEST_CASE("fingerprints tell files apart") {
  Folder folder;
  const std::string first = file_fingerprint(folder.file("a", "some text"));
  CHECK(first.size() == 16);
  CHECK(first == file_fingerprint(folder.file("b", "some text")));
  for (const char* other : {"some texT", "some text ", "some tex", "", "Some text"})
    CHECK(first != file_fingerprint(folder.file("c", other)));
  CHECK(file_fingerprint(folder.file("d", std::string(8, '\0'))) != file_fingerprint(folder.file("e", "")));
}

TEST_CASE("CSV is read as RFC 4180 has it") {
  CHECK(rows_of("a,b\n1,2\n3,4\n") == Rows{{"1", "2"}, {"3", "4"}});
  CHECK(rows_of("a,b\r\n1,2\r\n3,4") == Rows{{"1", "2"}, {"3", "4"}});
  CHECK(rows_of("a,b\n\"x, y\",\"say \"\"hi\"\"\"\n") == Rows{{"x, y", "say \"hi\""}});
  CHECK(rows_of("a,b\n\"two\nlines\",\"\"\n\"win\r\ndows\",z\n") == Rows{{"two\nlines", ""}, {"win\r\ndows", "z"}});
  CHECK(rows_of("a,b\n,\n\"\",\"\"\"\"\n") == Rows{{"", ""}, {"", "\""}});
  CHECK(rows_of("a\n\"\"\nx\n\n\n") == Rows{{""}, {"x"}});  // empty lines at the end are no rows
  CHECK(rows_of("\xEF\xBB\xBF"
                "a,b\n1,é\n") == Rows{{"1", "é"}});
  CHECK(rows_of("1,2\n3,4\n", {.header = false}) == Rows{{"1", "2"}, {"3", "4"}});
  CHECK(rows_of("a;b\n1,2;3\n", {.separator = ';'}) == Rows{{"1,2", "3"}});
  CHECK(rows_of("a,b\n") == Rows{});
  CHECK(rows_of("label\ttext\n1\tshe said \"no\", twice\n", {}, "table.tsv") == Rows{{"1", "she said \"no\", twice"}});
  CHECK(rows_of("a\tb\n\"x\ty\"\tz\n", {.quotes = true}, "table.tsv") == Rows{{"x\ty", "z"}});

  Folder folder;
  TableReader reader(folder.file("t.csv", "name,\"how\nmany\"\nx,1\n\"y\nz\",2\n"));
  CHECK(reader.columns() == std::vector<std::string>{"name", "how\nmany"});
  CHECK(reader.column("name") == 0);
  CHECK_THAT(error_of<FileError>([&] { reader.column("nam"); }),
             Contains("t.csv:1: there is no column 'nam'") && Contains("'name'"));
  std::vector<std::string> row;
  REQUIRE(reader.next(row));
  CHECK(reader.line() == 3);
  REQUIRE(reader.next(row));
  CHECK(reader.line() == 4);
  CHECK_THAT(error_of<FileError>([&] { reader.refuse("no number"); }), Contains("t.csv:4: no number"));
  CHECK_FALSE(reader.next(row));
}

TEST_CASE("tables that are none are refused with file and line") {
  CHECK_THAT(table_error("a,b\n1,2\n3\n"), Contains("table.csv:3: 1 field; 2 are expected, as in the first row"));
  CHECK_THAT(table_error("a,b\n1,2,3\n"), Contains("table.csv:2: 3 fields; 2"));
  CHECK_THAT(table_error("a,b\n1,2\n\n3,4\n"), Contains("table.csv:3: the line is empty"));
  CHECK_THAT(table_error("a,b\n1,\"x\ny\nz"), Contains("table.csv:2: a quote is opened in this row and never closed"));
  CHECK_THAT(table_error("a,b\n1,\"x\"y\n"),
             Contains("table.csv:2: there is text behind the closing quote of field 2"));
  CHECK_THAT(table_error("a,b\n1,\"x\n\"y\n"), Contains("table.csv:3: there is text behind"));
  CHECK_THAT(table_error("a,b\n1,x\"y\n"), Contains("table.csv:2: field 2 holds a quote"));
  CHECK_THAT(table_error("a,a\n1,2\n"), Contains("table.csv:1: two columns are named 'a'"));
  CHECK_THAT(table_error("\n\n"), Contains("no header"));
  CHECK_THAT(table_error(""), Contains("table.csv: the file is empty"));
  CHECK_THAT(table_error("a,b\n1,\xFF\n"), Contains("table.csv:2: byte 6"));
  CHECK_THAT(table_error("x y\n", {.header = false, .columns = 2}, "labels.tsv"),
             Contains("labels.tsv:1: 1 field; 2 are expected"));
  Folder folder;
  const fs::path path = folder.file("t.csv", "a\n");
  CHECK_THROWS_AS(read_table(path, {.separator = '\n'}), ValueError);
  CHECK_THROWS_AS(read_table(path, {.separator = '"'}), ValueError);
  CHECK_THROWS_AS(read_table(path, {.columns = 0}), ValueError);
  CHECK_THAT(error_of<FileError>([&] { read_table(folder.path / "none.csv"); }), Contains("none.csv"));
}

TEST_CASE("a token file gives back what was written, in pieces and windows") {
  Folder folder;
  const fs::path path = folder.path / "tokens";
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int64_t vocabulary : {int64_t{1}, int64_t{65536}, int64_t{65537}, int64_t{1} << 32}) {
    INFO("vocabulary " << vocabulary);
    std::vector<int64_t> ids(1000);
    for (auto& id : ids) id = static_cast<int64_t>(random()) % vocabulary;
    ids[3] = vocabulary - 1;
    TokenFileWriter writer(path, vocabulary, 77);
    for (size_t at = 0; at < ids.size(); at += 300)
      writer.write({ids.begin() + static_cast<std::ptrdiff_t>(at),
                    ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + 300, ids.size()))});
    writer.write({});
    CHECK(writer.count() == 1000);
    writer.commit();
    CHECK(fs::file_size(path) == 64 + 1000 * (vocabulary <= 65536 ? 2 : 4));

    const TokenFile file(path);
    CHECK(file.size() == 1000);
    CHECK(file.vocabulary() == vocabulary);
    CHECK(file.fingerprint() == 77);
    CHECK(file.read(0, 1000) == ids);
    CHECK(file.read(1000, 0).empty());
    CHECK(file[3] == vocabulary - 1);
    const Tensor windows = file.windows({0, 996, 10}, 4);
    CHECK(windows.shape() == Shape{3, 4});
    CHECK(windows.to_vector<int64_t>() == std::vector<int64_t>{ids[0], ids[1], ids[2], ids[3], ids[996], ids[997],
                                                               ids[998], ids[999], ids[10], ids[11], ids[12], ids[13]});
    CHECK_THROWS_AS(file.read(999, 2), IndexError);
    CHECK_THROWS_AS(file.read(-1, 2), IndexError);
    CHECK_THROWS_AS(file.read(1, INT64_MAX), IndexError);
    CHECK_THROWS_AS(file.windows({997}, 4), IndexError);
    CHECK_THROWS_AS(file.windows({}, 4), ValueError);
  }
}

TEST_CASE("a token file that is replaced leaves the mapping of the old one") {
  Folder folder;
  const fs::path path = folder.path / "tokens";
  write_token_file(path, {1, 2, 3}, 10);
  TokenFile file(path);
  write_token_file(path, {4}, 5);
  CHECK(file.read(0, 3) == std::vector<int64_t>{1, 2, 3});
  const TokenFile moved = std::move(file);
  CHECK(moved.read(1, 2) == std::vector<int64_t>{2, 3});
  CHECK(TokenFile(path)[0] == 4);
  write_token_file(path, {}, 5);
  CHECK(TokenFile(path).size() == 0);
}

TEST_CASE("token files that are none are refused, and nothing half-written is left") {
  Folder folder;
  const fs::path path = folder.path / "tokens";
  write_token_file(path, {1, 2, 3, 400}, 500);
  const std::string good = test::read_raw(path);
  const auto refused = [&](const std::string& bytes) {
    const fs::path other = folder.file("other", bytes);
    return error_of<FileError>([&] { TokenFile file(other); });
  };
  const auto with = [&](size_t at, uint64_t value, size_t bytes) {
    std::string changed = good;
    std::memcpy(changed.data() + at, &value, bytes);
    return changed;
  };
  CHECK(refused(good) == "no error");
  CHECK_THAT(refused(""), Contains("other: it is cut off: it has 0 bytes"));
  CHECK_THAT(refused(good.substr(0, 20)), Contains("cut off"));
  CHECK_THAT(refused("some text that is no token file, and long enough to be one if it were: really"),
             Contains("no token file"));
  CHECK_THAT(refused("short"), Contains("no token file"));
  CHECK_THAT(refused(good.substr(0, good.size() - 1)),
             Contains("4 ids of 2 bytes should follow its header, but 7 bytes do"));
  CHECK_THAT(refused(good + "xy"), Contains("2 bytes follow the 4 ids"));
  CHECK_THAT(refused(with(8, 9, 4)), Contains("version 9"));
  CHECK_THAT(refused(with(12, 4, 4)), Contains("its ids have 4 bytes; with a vocabulary of 500"));
  CHECK_THAT(refused(with(16, 0, 8)), Contains("vocabulary of 0"));
  CHECK_THAT(refused(with(24, ~uint64_t{0}, 8)), Contains("cut off"));
  CHECK_THAT(error_of<FileError>([&] { TokenFile file(folder.path); }), Contains("not a regular file"));
  CHECK_THAT(error_of<FileError>([&] { TokenFile file(folder.path / "none"); }), Contains("cannot open"));

  // An id that its header does not allow, found when it is read.
  const fs::path damaged = folder.file("damaged", with(64 + 2, 500, 2));
  const TokenFile file(damaged);
  CHECK(file.read(0, 1)[0] == 1);
  CHECK_THAT(error_of<FileError>([&] { file.read(0, 4); }),
             Contains("id 500 at place 1 is outside of its vocabulary of 500"));
  // A file that is cut off while it is in use.
  fs::resize_file(damaged, 66);
  CHECK_THAT(error_of<FileError>([&] { file.read(0, 1); }), Contains("it was cut off while it was in use"));

  // What is written is there in the end only.
  {
    TokenFileWriter writer(path, 10);
    writer.write({1});
    CHECK_THAT(error_of<ValueError>([&] {
                 writer.write({2, 10});
               }),
               Contains("id 10 at place 2 is outside of the vocabulary of 10"));
    CHECK_THROWS_AS(writer.write({-1}), ValueError);
  }
  CHECK(test::read_raw(path) == good);
  CHECK(folder.entries() == 3);
  CHECK_THROWS_AS(TokenFileWriter(path, 0), ValueError);
  CHECK_THROWS_AS(TokenFileWriter(path, (int64_t{1} << 32) + 1), ValueError);
}

TEST_CASE("a token file that the disk has no room for leaves the former one") {
  Folder folder;
  const fs::path path = folder.path / "tokens";
  write_token_file(path, {7}, 10);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_token_file(path, std::vector<int64_t>(5000, 1), 10);
    } catch (const FileError& error) {
      ::_exit(std::string(error.what()).find("cannot write") != std::string::npos ? 3 : 4);
    }
    ::_exit(5);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(TokenFile(path).read(0, 1) == std::vector<int64_t>{7});
  CHECK(folder.entries() == 1);
}

}  // namespace data_files_test
