#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/utf8.hpp>
#include <vector>

namespace examples {
namespace {

bool standard_output_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

bool locale_is_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text = value;
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto all = static_cast<long long>(std::llround(seconds));
  const long long s = all % 60, m = all / 60 % 60, h = all / 3600;
  if (h >= 24) return formatted("%lld day%s %02lld:%02lld", h / 24, h / 24 == 1 ? "" : "s", h % 24, m);
  return h > 0 ? formatted("%lld:%02lld:%02lld", h, m, s) : formatted("%lld:%02lld", m, s);
}

std::string rate_text(double rate) {
  if (!std::isfinite(rate)) return "?";
  const char* suffix = "";
  for (const char* next : {"k", "M", "G"}) {
    if (std::fabs(rate) < 999.5) break;
    rate /= 1000;
    suffix = next;
  }
  return formatted(*suffix != '\0' && std::fabs(rate) < 9.95 ? "%.1f%s" : "%.0f%s", rate, suffix);
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3)
    digits.insert(static_cast<std::size_t>(place), ",");
  return digits;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress::Progress(int64_t total, ProgressOutput output, int64_t done)
    : total_(std::max<int64_t>(total, 0)),
      done_(done),
      stream_(output.stream != nullptr ? *output.stream : std::cout),
      terminal_(output.terminal.value_or(output.stream == nullptr && standard_output_is_terminal())),
      unicode_(output.unicode.value_or(locale_is_unicode())),
      columns_(output.columns ? std::move(output.columns) : terminal_columns),
      seconds_(output.seconds ? std::move(output.seconds) : steady_seconds),
      begin_(seconds_()),
      now_(begin_) {}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a terminal that has gone away must not end the program
  }
}

std::string Progress::details(bool plain) const {
  std::string text;
  if (values_.loss) text += formatted("  loss %.4f", *values_.loss);
  if (values_.accuracy) text += formatted("  accuracy %.1f%%", 100 * *values_.accuracy);
  if (values_.tokens_per_second) text += "  " + rate_text(*values_.tokens_per_second) + " tokens/s";
  const double spent = now_ - begin_;
  if (step_ >= total_)
    text += "  " + duration_text(spent) + " in all";
  else if (step_ > done_ && (plain || spent >= 1))  // the first moments promise too little
    text += "  " + duration_text(spent / static_cast<double>(step_ - done_) * static_cast<double>(total_ - step_)) +
            " left";
  return text;
}

std::string Progress::bar_line() const {
  const int room = std::max(columns_() - 1, 1);  // a character in the last column would wrap on some terminals
  std::string text = formatted("%lld/%lld", static_cast<long long>(step_), static_cast<long long>(total_));
  const std::string parts = details(false);
  // As many whole details as fit beside a bar of ten or more; the bar takes what is left.
  int bar = room - 2 - static_cast<int>(text.size());
  for (std::size_t at = 0; at < parts.size();) {
    const std::size_t next = std::min(parts.find("  ", at + 2), parts.size());
    const int width = static_cast<int>(next - at);
    if (bar - width < 10) break;
    text += parts.substr(at, next - at);
    bar -= width;
    at = next;
  }
  if (bar < 4) return text.substr(0, static_cast<std::size_t>(room));
  bar = std::min(bar, 40);
  const double share =
      total_ == 0 ? 1.0 : std::clamp(static_cast<double>(step_) / static_cast<double>(total_), 0.0, 1.0);
  const int filled = static_cast<int>(share * bar);
  std::string line;
  for (int i = 0; i < bar; ++i) line += i < filled ? (unicode_ ? "━" : "#") : (unicode_ ? "╌" : "-");
  return line + "  " + text;
}

void Progress::draw() {
  stream_ << "\r" << bar_line() << "\x1b[K" << std::flush;
  bar_stands_ = true;
  shown_step_ = step_;
  last_shown_ = now_;
}

void Progress::update(int64_t step, const ProgressValues& values) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  const bool first = shown_step_ < 0;
  step_ = step;
  values_ = values;
  now_ = seconds_();
  if (terminal_) {
    if (first || step_ >= total_ || now_ - last_shown_ >= 0.1) draw();
    return;
  }
  const int64_t twentieth = std::max<int64_t>(1, total_ / 20);
  const bool due = first || step_ >= total_ || step_ / twentieth > shown_step_ / twentieth || now_ - last_shown_ >= 10;
  if (!due || step_ == shown_step_) return;
  stream_ << "step " << step_ << "/" << total_ << details(true) << "\n" << std::flush;
  shown_step_ = step_;
  last_shown_ = now_;
}

void Progress::log(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (bar_stands_) stream_ << "\r\x1b[K";
  stream_ << line << "\n" << std::flush;
  if (bar_stands_) draw();
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  now_ = seconds_();
  if (bar_stands_) {
    if (shown_step_ != step_) draw();
    stream_ << "\n" << std::flush;
    bar_stands_ = false;
  }
}

}  // namespace examples
