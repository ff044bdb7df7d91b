#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <regard/examples/common/random.hpp>

namespace examples {

/// A day of the Gregorian calendar.
struct Date {
  int64_t year = 1970;
  int64_t month = 1;  // 1 to 12
  int64_t day = 1;    // 1 to 31
};

/// The days that are written: first_day + i for i in [0, days_written).
constexpr int64_t first_year = 1900, last_year = 2099;
constexpr int64_t days_written = 73049;  // of 1900-01-01 to 2099-12-31
Date date_of(int64_t index);

/// "1998-03-03".
std::string iso_date(const Date& date);

/// A date as somebody might write it: in figures or words, in English, German, French, Spanish, Italian, Portuguese or
/// Dutch, with the day of the week or without, with a long year or, from 1950 to 2049, the last two of its figures, in
/// capital, small or usual letters. No form leaves a doubt: where day and month are both figures, the day comes first
/// unless the year does, and 50 to 99 are in the 20th century, 00 to 49 in the 21st.
std::string written_date(const Date& date, Random& random);

/// How many different forms there are, letters' case aside, and texts that hold every character that any of them may.
int64_t date_forms();
std::vector<std::string> date_characters();

/// No written date has more characters.
constexpr int64_t longest_written_date = 48;

}  // namespace examples
