// Safetensors: what is written is read back, and every rule of the format is checked.
#include <sys/resource.h>
#include <sys/stat.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <regard/autograd/file.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>

#include "test_folder.hpp"

namespace safetensors_test {

using namespace regard;
namespace fs = std::filesystem;

namespace {

using test::Folder;
using test::read_raw;

void write_raw(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return little_endian(header.size()) + header + std::string(data_bytes, '\0');
}

std::string header_of(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  return bytes.substr(8, length);
}

// The message of the FileError that loading these bytes gives; "loaded" if none.
std::string load_error(const std::string& bytes) {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  write_raw(path, bytes);
  try {
    load_safetensors(path);
  } catch (const FileError& error) {
    std::string message = error.what();
    CHECK_THAT(message, Catch::Contains(path.string()));
    return message;
  }
  return "loaded";
}

std::string tensor_error(const std::string& fields, size_t data_bytes) {
  return load_error(file_of("{\"test\":{" + fields + "}}", data_bytes));
}

}  // namespace

TEST_CASE("safetensors: every dtype, empty and zero-dimensional tensors and metadata come back") {
  Folder folder;
  fs::path path = folder.path / "all.safetensors";
  StateDict state;
  state["a.f32"] = from_vector<float>({1.5F, -2, 3e-40F, 0}, {2, 2});
  state["b.f64"] = from_vector<double>({0.1, 1e300}, {2});
  state["c.i64"] = from_vector<int64_t>({-1, INT64_MAX}, {2, 1});
  state["d.bool"] = from_vector<bool>({true, false, true}, {3});
  state["e.bf16"] = state["a.f32"].to(DType::bf16);
  state["f.f16"] = state["b.f64"].to(DType::f16);
  state["g.empty"] = zeros({0, 3});
  state["h.number"] = scalar_tensor(2.5);
  state["näme \"quoted\"\n"] = ones({1});
  SafetensorsMetadata metadata = {{"format", "regard"}, {"text", "ü \" \\ \n"}};
  save_safetensors(path, state, metadata);

  SafetensorsFile loaded = load_safetensors_file(path);
  CHECK(loaded.metadata == metadata);
  REQUIRE(loaded.tensors.size() == state.size());
  for (const auto& [name, tensor] : state) {
    INFO(name);
    const Tensor& other = loaded.tensors.at(name);
    CHECK(other.dtype() == tensor.dtype());
    CHECK(other.shape() == tensor.shape());
    CHECK(std::memcmp(other.raw_data(), tensor.raw_data(),
                      static_cast<size_t>(tensor.numel() * element_size(tensor.dtype()))) == 0);
  }
  CHECK(folder.entries() == 1);
  save_safetensors(path, {});
  CHECK(load_safetensors(path).empty());
}

TEST_CASE("safetensors: the bytes are those of the reference implementation") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  StateDict state;
  state["z"] = from_vector<float>({1, 2}, {2});
  state["b"] = from_vector<bool>({true}, {1});
  state["i"] = from_vector<int64_t>({7}, {1});
  state["a"] = from_vector<float>({3}, {1, 1});
  save_safetensors(path, state);
  std::string header =
      R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},)"
      R"("z":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},"b":{"dtype":"BOOL","shape":[1],"data_offsets":[20,21]}})";
  while (header.size() % 8 != 0) header += ' ';
  std::string bytes = little_endian(header.size()) + header + little_endian(7);
  for (float value : {3.0F, 1.0F, 2.0F}) bytes += std::string(reinterpret_cast<const char*>(&value), 4);
  bytes += '\1';
  CHECK(read_raw(path) == bytes);
}

TEST_CASE("safetensors: strided tensors are written in row-major order") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  StateDict state;
  Tensor matrix = from_vector<float>({1, 2, 3, 4}, {2, 2});
  state["transposed"] = matrix.t();
  state["expanded"] = from_vector<float>({1, 2}, {2}).expand({4, 2});
  state["sliced"] = arange(10, DType::f64).slice(0, 3, 9, 2);
  state["trained"] = ones({2}).set_requires_grad() * 2;
  save_safetensors(path, state);
  StateDict loaded = load_safetensors(path);
  CHECK(loaded.at("transposed").to_vector<float>() == std::vector<float>{1, 3, 2, 4});
  CHECK(loaded.at("expanded").to_vector<float>() == std::vector<float>{1, 2, 1, 2, 1, 2, 1, 2});
  CHECK(loaded.at("expanded").shape() == Shape{4, 2});
  CHECK(loaded.at("sliced").to_vector<double>() == std::vector<double>{3, 5, 7});
  CHECK(loaded.at("trained").to_vector<float>() == std::vector<float>{2, 2});
  CHECK_FALSE(loaded.at("trained").requires_grad());
}

TEST_CASE("safetensors: smaller integers become i64") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  std::string header =
      R"({"d":{"dtype":"U8","shape":[2],"data_offsets":[10,12]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"I16","shape":[2],"data_offsets":[4,8]},"c":{"dtype":"I8","shape":[2],"data_offsets":[8,10]}}   )";
  write_raw(path, little_endian(header.size()) + header +
                      std::string("\xfe\xff\xff\xff\x01\x00\xff\xff\x7f\x80\x7f\x80", 12));
  StateDict loaded = load_safetensors(path);
  CHECK(loaded.at("a").dtype() == DType::i64);
  CHECK(loaded.at("a").to_vector<int64_t>() == std::vector<int64_t>{-2});
  CHECK(loaded.at("b").to_vector<int64_t>() == std::vector<int64_t>{1, -1});
  CHECK(loaded.at("c").to_vector<int64_t>() == std::vector<int64_t>{127, -128});
  CHECK(loaded.at("d").to_vector<int64_t>() == std::vector<int64_t>{127, 128});
}

TEST_CASE("safetensors: a file without __metadata__ and with a padded header loads") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  std::string header = R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";
  REQUIRE(header.size() == 60);
  write_raw(path, file_of(header, 16));
  CHECK(fs::file_size(path) == 84);
  CHECK(load_safetensors(path).at("test").to_vector<int64_t>() == std::vector<int64_t>(4));
  write_raw(path, file_of(header + "    ", 16));
  CHECK(load_safetensors(path).at("test").shape() == Shape{2, 2});
}

TEST_CASE("safetensors: the header's length is checked before it is used") {
  using Catch::Contains;
  CHECK_THAT(load_error(""), Contains("it has 0 bytes, too few"));
  CHECK_THAT(load_error("1234567"), Contains("it has 7 bytes, too few"));
  for (uint64_t length : {UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 63, uint64_t{5}}) {
    INFO(length);
    CHECK_THAT(load_error(little_endian(length) + "{}  "),
               Contains("its header should have " + std::to_string(length) + " bytes, but only 4 follow"));
  }
  // Longer than the format allows, in a file with a hole, so that nothing large is written or read.
  Folder folder;
  fs::path path = folder.path / "large.safetensors";
  write_raw(path, little_endian(100'000'001));
  fs::resize_file(path, 100'000'100);
  CHECK_THROWS_WITH(load_safetensors(path), Contains("100000001 bytes; the format allows 100000000"));
  CHECK_THROWS_AS(load_safetensors(folder.path), FileError);  // a folder
  CHECK_THROWS_WITH(load_safetensors(folder.path / "none"), Contains("No such file"));
}

TEST_CASE("safetensors: shapes that overflow, or are no whole numbers, are refused") {
  using Catch::Contains;
  auto shape = [](const std::string& text, size_t bytes) {
    return tensor_error("\"dtype\":\"F32\",\"shape\":" + text + ",\"data_offsets\":[0," + std::to_string(bytes) + "]",
                        bytes);
  };
  CHECK_THAT(shape("[4294967296,4294967296]", 0), Contains("'test': the number of elements of its shape is too large"));
  CHECK_THAT(shape("[0,4611686018427387904,4]", 0), Contains("too large"));
  CHECK_THAT(shape("[18446744073709551615]", 0), Contains("too large"));
  CHECK_THAT(shape("[-1]", 0), Contains("'test': shape holds the negative number -1"));
  CHECK_THAT(shape("[2.5]", 8), Contains("'test': shape holds 2.5, which is not a 64-bit whole number"));
  CHECK_THAT(shape("[1e30]", 8), Contains("shape holds 1e30"));
  CHECK_THAT(shape("[1,1,1,1,1,1,1,1,1]", 4), Contains("more than the 8 dimensions"));
  CHECK_THAT(shape("[\"2\"]", 8), Contains("a string stands in shape"));
  CHECK_THAT(shape("[[2]]", 8), Contains("a list stands in shape"));
  CHECK_THAT(shape("2", 8), Contains("a number stands in shape"));
  CHECK_THAT(shape("null", 8), Contains("null stands in shape"));
  CHECK_THAT(shape("[2]", 12), Contains("hold 12 bytes, but F32 of shape [2] takes 8"));
  CHECK(shape("[0,3]", 0) == "loaded");
  CHECK(shape("[]", 4) == "loaded");
}

TEST_CASE("safetensors: offsets that are reversed, negative, past the end or missing are refused") {
  using Catch::Contains;
  auto offsets = [](const std::string& text) {
    return tensor_error("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":" + text, 16);
  };
  CHECK(offsets("[0,16]") == "loaded");
  CHECK_THAT(offsets("[16,0]"), Contains("'test': data_offsets [16, 0] end before they begin"));
  CHECK_THAT(offsets("[-8,0]"), Contains("'test': data_offsets holds the negative number -8"));
  CHECK_THAT(offsets("[0,1152921504606846976]"), Contains("'test': data_offsets [0, 1152921504606846976] reach past"));
  CHECK_THAT(offsets("[0]"), Contains("'test': data_offsets must be two numbers"));
  CHECK_THAT(offsets("[0,16,16]"), Contains("data_offsets must be two numbers"));
  CHECK_THAT(offsets("[0.0,16]"), Contains("'test': data_offsets holds 0.0"));
  CHECK_THAT(offsets("{\"a\":0}"), Contains("an object stands in data_offsets"));
  CHECK_THAT(tensor_error("\"dtype\":\"F32\",\"shape\":[4]", 16), Contains("'test': data_offsets is missing"));
  CHECK_THAT(tensor_error("\"dtype\":\"F32\",\"data_offsets\":[0,16]", 16), Contains("'test': shape is missing"));
  CHECK_THAT(tensor_error("\"shape\":[4],\"data_offsets\":[0,16]", 16), Contains("'test': dtype is missing"));
}

TEST_CASE("safetensors: overlaps, holes and unindexed bytes are refused") {
  using Catch::Contains;
  auto two = [](const std::string& a, const std::string& b, size_t bytes) {
    return load_error(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":" + a +
                                  "},\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":" + b + "}}",
                              bytes));
  };
  CHECK(two("[16,32]", "[0,16]", 32) == "loaded");  // in any order
  CHECK_THAT(two("[0,16]", "[0,16]", 16), Contains("tensor 'b': its data overlaps that of tensor 'a'"));
  CHECK_THAT(two("[0,16]", "[8,24]", 24), Contains("overlaps"));
  CHECK_THAT(two("[0,16]", "[20,36]", 36), Contains("tensor 'b': a hole of 4 bytes lies before its data"));
  CHECK_THAT(two("[4,20]", "[20,36]", 36), Contains("tensor 'a': a hole of 4 bytes"));
  CHECK_THAT(two("[0,16]", "[16,32]", 36), Contains("4 unindexed bytes after the last tensor"));
  CHECK_THAT(load_error(file_of("{}", 3)), Contains("3 unindexed bytes after the last tensor"));
}

TEST_CASE("safetensors: unknown dtypes, duplicate keys, deep nesting and bad text are refused") {
  using Catch::Contains;
  std::string good = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  CHECK(tensor_error(good, 4) == "loaded");
  CHECK_THAT(tensor_error(R"("dtype":"F99","shape":[1],"data_offsets":[0,4])", 4),
             Contains("tensor 'test': dtype 'F99' is not supported"));
  CHECK_THAT(tensor_error(R"("dtype":5,"shape":[1],"data_offsets":[0,4])", 4), Contains("a number stands in dtype"));
  CHECK_THAT(tensor_error(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])", 4),
             Contains("a list stands in dtype"));
  CHECK_THAT(tensor_error(good + R"(,"shape":[1])", 4), Contains("shape is there twice"));
  CHECK_THAT(tensor_error(good + R"(,"extra":1)", 4), Contains("unknown field 'extra'"));
  CHECK_THAT(load_error(file_of("{\"test\":{" + good + "},\"test\":{" + good + "}}", 4)),
             Contains("tensor 'test': it is there twice"));
  CHECK_THAT(load_error(file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0)), Contains("the key 'a' is there twice"));
  CHECK_THAT(load_error(file_of(R"({"__metadata__":{"a":"1"},"__metadata__":{}})", 0)), Contains("there twice"));
  CHECK_THAT(load_error(file_of(R"({"__metadata__":{"a":1}})", 0)), Contains("only strings are allowed"));
  CHECK_THAT(load_error(file_of(R"({"__metadata__":{"a":{"b":"c"}}})", 0)), Contains("only strings are allowed"));
  CHECK_THAT(load_error(file_of(R"({"__metadata__":"a"})", 0)), Contains("where an object belongs"));
  CHECK(load_error(file_of(R"({"__metadata__":{"a":"1"}})", 0)) == "loaded");

  std::string deep(1'000'000, '[');
  CHECK_THAT(load_error(file_of("{\"test\":" + deep + "}", 0)), Contains("tensor 'test': a list stands"));
  CHECK_THAT(tensor_error("\"shape\":" + deep, 0), Contains("a list stands in shape"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_THAT(load_error(file_of(objects, 0)), Contains("unknown field") || Contains("an object stands"));
  CHECK_THAT(load_error(file_of(deep, 0)), Contains("does not begin with '{'"));

  CHECK_THAT(load_error(file_of("{\"te\xff\xfest\":{" + good + "}}", 4)), Contains("not valid JSON"));
  CHECK_THAT(load_error(file_of("{\"test\":{" + good + "}", 4)), Contains("not valid JSON"));
  CHECK_THAT(load_error(file_of("{\"test\":{" + good + "}} x", 4)), Contains("not valid JSON"));
  CHECK_THAT(load_error(file_of("", 4)), Contains("does not begin with '{'"));
  CHECK_THAT(load_error(file_of(" {}", 0)), Contains("does not begin with '{'"));
  CHECK_THAT(load_error(file_of(R"({"m":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 0) + "\2"),
             Contains("tensor 'm': element 0 of a BOOL is 2, neither 0 nor 1"));
}

TEST_CASE("safetensors: what cannot be saved is refused before anything is written") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  save_safetensors(path, {{"old", ones({2})}});
  CHECK_THROWS_AS(save_safetensors(path, {{"a", Tensor()}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(path, {{"__metadata__", ones({1})}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(path, {{"bad \xff", ones({1})}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(path, {{"a", ones({1})}}, {{"key", "\xc3"}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(folder.path / "none" / "x", {{"a", ones({1})}}), FileError);
  CHECK_THROWS_AS(save_safetensors(folder.path, {{"a", ones({1})}}), FileError);
  CHECK_THROWS_AS(save_safetensors("", {{"a", ones({1})}}), FileError);
  CHECK(load_safetensors(path).contains("old"));
  CHECK(folder.entries() == 1);
}

TEST_CASE("safetensors: a save that fails half-way keeps the former file and leaves no other") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  save_safetensors(path, {{"old", ones({2})}});
  // As on a full disk: the system refuses to write past this size.
  rlimit former{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &former) == 0);
  auto former_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = former;
  small.rlim_cur = 4096;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    save_safetensors(path, {{"new", ones({4096})}});
  } catch (const FileError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &former);
  std::signal(SIGXFSZ, former_handler);
  CHECK_THAT(message, Catch::Contains(path.string()) && Catch::Contains("cannot write: "));
  CHECK(load_safetensors(path).contains("old"));
  CHECK(folder.entries() == 1);
  save_safetensors(path, {{"new", ones({4096})}});
  CHECK(load_safetensors(path).contains("new"));
}

TEST_CASE("files: written whole or not at all, with the permissions and through the links that were there") {
  Folder folder;
  fs::path path = folder.path / "text";
  write_file_atomically(path, "one");
  {
    AtomicFile unfinished(path);
    unfinished.write("two");
    CHECK(folder.entries() == 2);
  }
  CHECK(read_raw(path) == "one");
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  fs::create_symlink("text", folder.path / "link");
  write_file_atomically(folder.path / "link", "three");
  CHECK(read_raw(path) == "three");
  CHECK(fs::is_symlink(folder.path / "link"));
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(folder.entries() == 2);
  CHECK_THROWS_WITH(write_file_atomically("/dev/null", "x"), Catch::Contains("not a regular file"));
}

TEST_CASE("safetensors: no truncated or damaged file crashes") {
  Folder folder;
  fs::path path = folder.path / "x.safetensors";
  save_safetensors(
      path, {{"weight", arange(6, DType::f32).view({2, 3})}, {"ids", arange(2)}, {"m", zeros({3}, DType::boolean)}},
      {{"format", "pt"}});
  const std::string good = read_raw(path);
  REQUIRE(load_safetensors(path).size() == 3);
  auto survives = [&](const std::string& bytes) {
    fs::remove(path);  // some file systems flush a file that is written over, which takes long
    write_raw(path, bytes);
    try {
      load_safetensors(path);
      return true;
    } catch (const FileError&) {
      return false;
    }
  };
  for (size_t length = 0; length < good.size(); ++length) {
    INFO(length);
    CHECK_FALSE(survives(good.substr(0, length)));
  }
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int loaded = 0;
  const size_t structure = 8 + header_of(good).size();
  for (int i = 0; i < 6000; ++i) {
    std::string bytes = good;
    // Mostly in the header, where the structure is; one to four bytes at once.
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      size_t at = random() % (i % 4 == 0 ? bytes.size() : structure);
      bytes[at] = i % 2 == 0 ? static_cast<char>(random()) : "0123456789{}[]\",:-eE.\\"[random() % 23];
    }
    CHECK_NOTHROW(loaded += survives(bytes) ? 1 : 0);
  }
  CHECK(loaded > 0);     // changed elements or names: still a file
  CHECK(loaded < 4000);  // and most others are refused
}

}  // namespace safetensors_test
