#include "services/hearthctl/point_choice.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/cli/command_line.h"
#include "services/hearthctl/json_text.h"
#include "services/serving/flags.h"

namespace hearth {
namespace {

using Point = v1::RestorePointInfo;

// A column with numbers in it.
struct Column {
  double (*value)(const Point&);
  absl::StatusOr<double> (*parse)(const std::string&);
  bool largest_first;
};

absl::StatusOr<double> ParseCount(const std::string& text) {
  uint64_t count = 0;
  if (absl::SimpleAtoi(text, &count)) return static_cast<double>(count);
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number"));
}

absl::StatusOr<double> ParseBytes(const std::string& text) {
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) return bytes.status();
  return static_cast<double>(*bytes);
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  const absl::StatusOr<absl::Duration> duration = ParseDurationOrSeconds(text);
  if (!duration.ok()) return duration.status();
  return absl::ToDoubleSeconds(*duration);
}

const std::map<std::string, Column>& Columns() {
  static const auto& columns = *new std::map<std::string, Column>{
      {"tokens", {[](const Point& p) { return double(p.tokens()); }, ParseCount, true}},
      {"bytes", {[](const Point& p) { return double(p.bytes()); }, ParseBytes, true}},
      {"hits", {[](const Point& p) { return double(p.hits()); }, ParseCount, true}},
      {"age", {[](const Point& p) { return p.age_s(); }, ParseSeconds, false}},
      // What lives until room is needed has the longest time left.
      {"left",
       {[](const Point& p) {
          return p.has_expires_in_s() ? p.expires_in_s() : std::numeric_limits<double>::infinity();
        },
        ParseSeconds, false}},
  };
  return columns;
}

absl::Status NoFilter(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text,
      "\" is no filter: write tokens, bytes, hits, age or left, one of < <= = >= > and "
      "a value, or tier=host, pinned=yes, durable=no, id=3fa9"));
}

absl::StatusOr<PointFilter> NumberFilter(const Column& column, const std::string& sign,
                                         const std::string& text) {
  const absl::StatusOr<double> limit = column.parse(text);
  if (!limit.ok()) return limit.status();
  return PointFilter([value = column.value, sign, limit = *limit](const Point& point) {
    const double number = value(point);
    if (sign == "<") return number < limit;
    if (sign == "<=") return number <= limit;
    if (sign == ">") return number > limit;
    if (sign == ">=") return number >= limit;
    return number == limit;
  });
}

absl::StatusOr<PointFilter> WordFilter(const std::string& name, const std::string& word,
                                       const std::string& text) {
  if (name == "tier")
    return PointFilter([word](const Point& p) { return TierText(p.tier()) == word; });
  if (name == "id") {
    return PointFilter([digits = absl::AsciiStrToLower(word)](const Point& p) {
      return absl::StartsWith(HexText(p.restore_point_id()), digits);
    });
  }
  if ((name != "pinned" && name != "durable") || (word != "yes" && word != "no")) {
    return NoFilter(text);
  }
  return PointFilter([pinned = name == "pinned", yes = word == "yes"](const Point& p) {
    return (pinned ? p.pinned() : p.durable()) == yes;
  });
}

}  // namespace

absl::StatusOr<PointFilter> ParsePointFilter(const std::string& text) {
  const size_t begin = text.find_first_of("<=>");
  if (begin == text.npos) return NoFilter(text);
  const size_t end = std::min(text.find_first_not_of("<=>", begin), text.size());
  const std::string name = text.substr(0, begin), sign = text.substr(begin, end - begin),
                    value = text.substr(end);
  const bool is_sign = sign == "<" || sign == "<=" || sign == "=" || sign == ">=" || sign == ">";
  if (!is_sign || value.empty()) return NoFilter(text);
  const auto column = Columns().find(name);
  if (column != Columns().end()) return NumberFilter(column->second, sign, value);
  return sign == "=" ? WordFilter(name, value, text) : NoFilter(text);
}

void PointChoice::Declare(CommandFlags* command) {
  command->Add("--sort", &sort_, "by tokens, bytes, hits (most first), age or left (least first)")
      .Check([](const std::string& text) {
        return Columns().count(text) > 0 ? std::string()
                                         : NotOneOf(text, "tokens, bytes, hits, age, left");
      })
      .ShowDefault();
  command->Add("--limit", &limit_, "no more than so many; 0: all");
  command
      ->Add(
          "--filter", &filters_,
          "only such as tokens>1000, bytes>=1MiB, age<10m, tier=disk, pinned=yes; may be repeated")
      .OneValueEach()
      .Check([](const std::string& text) {
        return std::string(ParsePointFilter(text).status().message());
      });
}

size_t PointChoice::Apply(std::vector<Point>* points) const {
  for (const std::string& text : filters_) {
    const absl::StatusOr<PointFilter> wanted = ParsePointFilter(text);
    assert(wanted.ok());
    points->erase(std::remove_if(points->begin(), points->end(),
                                 [&wanted](const Point& point) { return !(*wanted)(point); }),
                  points->end());
  }
  const Column& column = Columns().at(sort_);
  std::stable_sort(points->begin(), points->end(), [&column](const Point& a, const Point& b) {
    return column.largest_first ? column.value(a) > column.value(b)
                                : column.value(a) < column.value(b);
  });
  if (limit_ == 0 || points->size() <= limit_) return 0;
  const size_t beyond = points->size() - limit_;
  points->resize(limit_);
  return beyond;
}

}  // namespace hearth
