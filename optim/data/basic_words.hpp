// Basic words: text cleaned, normalised and split as BERT wants it, before words are cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace regard::data {

struct BasicWordsOptions {
  bool lower_case = true;
  bool strip_accents = true;  ///< decompose (Unicode NFD) and drop non-spacing marks
  bool split_chinese = true;  ///< each CJK ideograph is a word of its own
  bool clean_text = true;     ///< drop control characters, make every white space a space
};

/// The words of a text in UTF-8: cleaned and normalised as the options say, split at white space, each punctuation mark
/// a word. Case and categories are Unicode's (utf8proc). Lower case is taken character by character, so that a capital
/// sigma at a word's end becomes a plain one; accents go before case. A text that is not UTF-8 is a ValueError that
/// names the byte.
std::vector<std::string> basic_words(std::string_view text, const BasicWordsOptions& options = {});

/// A text in lower case, character by character.
std::string lower_case(std::string_view text);

/// How many code points a text in UTF-8 has, which must be valid.
int64_t count_code_points(std::string_view text);

}  // namespace regard::data
