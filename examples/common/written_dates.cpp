#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <regard/examples/common/utf8.hpp>
#include <regard/examples/common/written_dates.hpp>
#include <string_view>

namespace examples {
namespace {

using Names12 = std::array<std::string_view, 12>;
using Names7 = std::array<std::string_view, 7>;

// Forms are written with: %d %D the day, %D always two figures; %o the day in English with its ending, %e in French
// with 1er; %m %M the month alike, %R in Roman figures, %B its name, %b a short one; %A %a the day of the week; %Y the
// year, %y its last two figures.
struct Language {
  Names12 months, short_months;
  Names7 weekdays, short_weekdays;  // from Sunday
  std::vector<std::string_view> forms;
};

constexpr Names12 english_months = {"January", "February", "March",     "April",   "May",      "June",
                                    "July",    "August",   "September", "October", "November", "December"};
constexpr Names12 english_short = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
constexpr Names7 english_days = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr Names7 english_short_days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};

const Language& english() {
  static const Language language = {
      english_months,
      english_short,
      english_days,
      english_short_days,
      {"%d %B %Y",    "%D %B %Y",           "%o of %B %Y", "%o %B %Y",      "%o %B, %Y",     "the %o of %B, %Y",
       "%B %d, %Y",   "%B %d %Y",           "%B %o, %Y",   "%B the %o, %Y", "%A, %d %B %Y",  "%A, %B %d, %Y",
       "%A %o %B %Y", "%A the %o of %B %Y", "%d %b %Y",    "%D-%b-%Y",      "%D %b %Y",      "%b %d, %Y",
       "%b. %d, %Y",  "%a, %D %b %Y",       "%a %b %d %Y", "%a %d %b %Y",   "%a. %B %d, %Y", "%d %b '%y",
       "%d %b %y",    "%b %d, '%y",         "%b %d, %y",   "%D-%b-%y",      "%o %b '%y",     "%B %o, '%y",
       "%Y %B %d",    "%Y, %B %o",          "%Y-%b-%D",    "%d%b%Y",        "%b-%D-%Y",      "%A, %o of %B, %Y"}};
  return language;
}

// In figures, for all languages; the day's name, where there is one, is English.
const Language& figures() {
  static const Language language = {
      english_months,
      english_short,
      english_days,
      english_short_days,
      {"%d/%m/%Y", "%D/%M/%Y", "%d.%m.%Y", "%D.%M.%Y", "%d-%m-%Y",   "%D-%M-%Y",     "%D %M %Y",     "%D/%M/%y",
       "%d/%m/%y", "%d.%m.%y", "%D-%M-%y", "%Y-%M-%D", "%Y-%m-%d",   "%Y/%M/%D",     "%Y/%m/%d",     "%Y.%M.%D",
       "%Y%M%D",   "%Y %M %D", "%d.%R.%Y", "%d %R %Y", "%d. %m. %Y", "%a, %D/%M/%Y", "%A, %d.%m.%Y", "%Y年%m月%d日"}};
  return language;
}

const std::vector<Language>& others() {
  static const std::vector<Language> languages = {
      {{"Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November",
        "Dezember"},
       {"Jan.", "Feb.", "März", "Apr.", "Mai", "Juni", "Juli", "Aug.", "Sept.", "Okt.", "Nov.", "Dez."},
       {"Sonntag", "Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag"},
       {"So.", "Mo.", "Di.", "Mi.", "Do.", "Fr.", "Sa."},
       {"%d. %B %Y", "%D. %B %Y", "%A, %d. %B %Y", "%A, den %d. %B %Y", "den %d. %B %Y", "am %d. %B %Y", "%d. %b %Y",
        "%a, %d.%m.%Y", "%a %D.%M.%y", "%d. %B '%y"}},
      {{"janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre", "novembre",
        "décembre"},
       {"janv.", "févr.", "mars", "avr.", "mai", "juin", "juil.", "août", "sept.", "oct.", "nov.", "déc."},
       {"dimanche", "lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi"},
       {"dim.", "lun.", "mar.", "mer.", "jeu.", "ven.", "sam."},
       {"%e %B %Y", "le %e %B %Y", "%A %e %B %Y", "le %A %e %B %Y", "%e %b %Y", "%a %e %b %Y"}},
      {{"enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre", "noviembre",
        "diciembre"},
       {"ene.", "feb.", "mar.", "abr.", "may.", "jun.", "jul.", "ago.", "sept.", "oct.", "nov.", "dic."},
       {"domingo", "lunes", "martes", "miércoles", "jueves", "viernes", "sábado"},
       {"dom.", "lun.", "mar.", "mié.", "jue.", "vie.", "sáb."},
       {"%d de %B de %Y", "el %d de %B de %Y", "%A, %d de %B de %Y", "%A %d de %B de %Y", "%d %b %Y", "%d de %B, %Y"}},
      {{"gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre", "ottobre",
        "novembre", "dicembre"},
       {"gen.", "feb.", "mar.", "apr.", "mag.", "giu.", "lug.", "ago.", "set.", "ott.", "nov.", "dic."},
       {"domenica", "lunedì", "martedì", "mercoledì", "giovedì", "venerdì", "sabato"},
       {"dom.", "lun.", "mar.", "mer.", "gio.", "ven.", "sab."},
       {"%d %B %Y", "il %d %B %Y", "%A %d %B %Y", "%A, %d %B %Y", "%d %b %Y"}},
      {{"janeiro", "fevereiro", "março", "abril", "maio", "junho", "julho", "agosto", "setembro", "outubro", "novembro",
        "dezembro"},
       {"jan.", "fev.", "mar.", "abr.", "mai.", "jun.", "jul.", "ago.", "set.", "out.", "nov.", "dez."},
       {"domingo", "segunda-feira", "terça-feira", "quarta-feira", "quinta-feira", "sexta-feira", "sábado"},
       {"dom.", "seg.", "ter.", "qua.", "qui.", "sex.", "sáb."},
       {"%d de %B de %Y", "%A, %d de %B de %Y", "%d de %b de %Y"}},
      {{"januari", "februari", "maart", "april", "mei", "juni", "juli", "augustus", "september", "oktober", "november",
        "december"},
       {"jan.", "feb.", "mrt.", "apr.", "mei", "jun.", "jul.", "aug.", "sep.", "okt.", "nov.", "dec."},
       {"zondag", "maandag", "dinsdag", "woensdag", "donderdag", "vrijdag", "zaterdag"},
       {"zo.", "ma.", "di.", "wo.", "do.", "vr.", "za."},
       {"%d %B %Y", "%A %d %B %Y", "%a %d %b %Y", "op %d %B %Y", "%d %b '%y"}}};
  return languages;
}

constexpr Names12 roman = {"I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"};

std::string two_figures(int64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); }

std::string ordinal(int64_t day) {
  const bool teen = day >= 11 && day <= 13;
  const char* ending = teen || day % 10 > 3 || day % 10 == 0 ? "th"
                       : day % 10 == 1                       ? "st"
                       : day % 10 == 2                       ? "nd"
                                                             : "rd";
  return std::to_string(day) + ending;
}

std::size_t weekday(const Date& date) {  // 0: Sunday
  const std::chrono::sys_days day =
      std::chrono::year(static_cast<int>(date.year)) / static_cast<int>(date.month) / static_cast<int>(date.day);
  return std::chrono::weekday(day).c_encoding();
}

std::string filled_in(std::string_view form, const Language& language, const Date& date) {
  const auto month = static_cast<std::size_t>(date.month - 1);
  std::string text;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '%') {
      text += form[i];
      continue;
    }
    switch (form[++i]) {
      case 'd':
        text += std::to_string(date.day);
        break;
      case 'D':
        text += two_figures(date.day);
        break;
      case 'o':
        text += ordinal(date.day);
        break;
      case 'e':
        text += date.day == 1 ? "1er" : std::to_string(date.day);
        break;
      case 'm':
        text += std::to_string(date.month);
        break;
      case 'M':
        text += two_figures(date.month);
        break;
      case 'R':
        text += roman[month];
        break;
      case 'B':
        text += language.months[month];
        break;
      case 'b':
        text += language.short_months[month];
        break;
      case 'A':
        text += language.weekdays[weekday(date)];
        break;
      case 'a':
        text += language.short_weekdays[weekday(date)];
        break;
      case 'Y':
        text += std::to_string(date.year);
        break;
      default:
        text += two_figures(date.year % 100);
        break;  // %y
    }
  }
  return text;
}

// Latin letters, those with accents too (U+00E0 to U+00FE and U+00C0 to U+00DE are a step of 0x20 apart).
std::string in_letters(const std::string& text, bool capital) {
  std::u32string characters = from_utf8(text);
  for (char32_t& c : characters) {
    const bool small_letter = (c >= U'a' && c <= U'z') || (c >= 0xE0 && c <= 0xFE && c != 0xF7);
    const bool capital_letter = (c >= U'A' && c <= U'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7);
    if (capital && small_letter) c -= 0x20;
    if (!capital && capital_letter) c += 0x20;
  }
  return to_utf8(characters);
}

std::vector<const Language*> all_languages() {
  std::vector<const Language*> languages = {&english(), &figures()};
  for (const Language& language : others()) languages.push_back(&language);
  return languages;
}

}  // namespace

Date date_of(int64_t index) {
  using namespace std::chrono;
  const year_month_day day = sys_days(year(static_cast<int>(first_year)) / January / 1) + days(index);
  return {static_cast<int>(day.year()), static_cast<int64_t>(static_cast<unsigned>(day.month())),
          static_cast<int64_t>(static_cast<unsigned>(day.day()))};
}

std::string iso_date(const Date& date) {
  return std::to_string(date.year) + "-" + two_figures(date.month) + "-" + two_figures(date.day);
}

std::string written_date(const Date& date, Random& random) {
  const int64_t kind = random.below(10);  // half are English, a fifth in figures, the rest in other languages
  const Language& language = kind < 5   ? english()
                             : kind < 7 ? figures()
                                        : others()[static_cast<std::size_t>(random.below(std::ssize(others())))];
  const bool short_year = date.year >= 1950 && date.year <= 2049;
  std::string_view form;
  do form = language.forms[static_cast<std::size_t>(random.below(std::ssize(language.forms)))];
  while (!short_year && form.find("%y") != std::string_view::npos);
  const std::string text = filled_in(form, language, date);
  const int64_t letters = random.below(10);
  return letters < 8 ? text : in_letters(text, letters == 8);
}

int64_t date_forms() {
  int64_t count = 0;
  for (const Language* language : all_languages()) count += std::ssize(language->forms);
  return count;
}

std::vector<std::string> date_characters() {
  std::vector<std::string> texts = {"0123456789"};
  const auto add = [&](const auto& names) {
    for (std::string_view name : names)
      for (const std::string& text :
           {std::string(name), in_letters(std::string(name), true), in_letters(std::string(name), false)})
        texts.push_back(text);
  };
  add(roman);
  add(std::array<std::string_view, 5>{"st", "nd", "rd", "th", "er"});
  for (const Language* language : all_languages()) {
    add(language->months);
    add(language->short_months);
    add(language->weekdays);
    add(language->short_weekdays);
    std::vector<std::string> rest;  // the forms without what is filled in
    for (std::string_view form : language->forms) {
      rest.emplace_back();
      for (std::size_t i = 0; i < form.size(); ++i) {
        if (form[i] == '%')
          ++i;
        else
          rest.back() += form[i];
      }
    }
    add(rest);
  }
  return texts;
}

}  // namespace examples
