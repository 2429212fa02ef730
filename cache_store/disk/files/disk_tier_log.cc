#include "cache_store/disk/files/disk_tier_log.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace hearth {
namespace {

constexpr size_t kLineBytes = 512;  // more of a line says no more
constexpr size_t kMaxDropped = 16;

// Of a log that ends in the middle of a record it says "trailing data" or "truncated": a crash
// leaves that.
bool IsDropped(const std::string& text) {
  return absl::StrContains(text, ".log: dropping ") && absl::StrContains(text, "Corruption") &&
         !absl::StrContains(text, "trailing data") && !absl::StrContains(text, "truncated");
}

}  // namespace

void DatabaseLog::Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) {
  if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level >= rocksdb::InfoLogLevel::HEADER_LEVEL) {
    return;
  }
  char line[kLineBytes];
  if (std::vsnprintf(line, sizeof(line), format, arguments) < 0) return;
  const std::string text =
      absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(line), {{"\n", " "}, {"\r", " "}});
  if (IsDropped(text)) {
    absl::MutexLock lock(&mu_);
    if (dropped_.size() < kMaxDropped) {
      dropped_.push_back(
          absl::StrCat("the log is damaged, what was written after is lost: ", text));
    }
  }
  if (warnings_ != nullptr) warnings_->Say("database", text);
}

}  // namespace hearth
