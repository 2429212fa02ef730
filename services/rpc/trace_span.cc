#include "services/rpc/trace_span.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// VERSION-TRACE-SPAN-FLAGS, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01. Later
// versions may continue with another "-".
constexpr size_t kTraceAt = 3, kSpanAt = 36, kFlagsAt = 53, kEnd = 55;

std::string RandomId() {
  thread_local absl::BitGen random;
  return absl::StrCat(
      absl::Hex(absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, ~0ULL), absl::kZeroPad16));
}

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c); });
}

bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

bool IsTraceparent(absl::string_view text) {
  if (text.size() < kEnd) return false;
  const absl::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return false;
  if (text.size() > kEnd && (version == "00" || text[kEnd] != '-')) return false;
  return text[kTraceAt - 1] == '-' && text[kSpanAt - 1] == '-' && text[kFlagsAt - 1] == '-' &&
         IsId(text.substr(kTraceAt, 32)) && IsId(text.substr(kSpanAt, 16)) &&
         IsHex(text.substr(kFlagsAt, 2));
}

}  // namespace

std::string TraceSpan::Traceparent() const {
  if (trace_id.empty()) return "";
  return absl::StrCat("00-", trace_id, "-", span_id, is_sampled ? "-01" : "-00");
}

TraceSpan NewSpan(absl::string_view traceparent) {
  if (!IsTraceparent(traceparent)) {
    return {absl::StrCat(RandomId(), RandomId()), RandomId(), "", false};
  }
  const char last_flag = traceparent[kEnd - 1];
  const int flags = absl::ascii_isdigit(last_flag) ? last_flag - '0' : last_flag - 'a' + 10;
  return {std::string(traceparent.substr(kTraceAt, 32)), RandomId(),
          std::string(traceparent.substr(kSpanAt, 16)), (flags & 1) != 0};
}

}  // namespace hearth
