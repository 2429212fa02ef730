#include "cache_store/store/drop_numbers.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {

uint64_t DropNumbers::Of(const std::string& tenant) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto it = numbers_.find(tenant);
  return it == numbers_.end() ? 0 : it->second;
}

void DropNumbers::Set(const std::string& tenant, uint64_t number,
                      absl::FunctionRef<bool(const std::string& tenant)> has_any) {
  absl::MutexLock lock(&mu_);
  if (numbers_.size() >= kMaxTenants) {
    absl::erase_if(numbers_, [&](const auto& entry) { return !has_any(entry.first); });
  }
  numbers_[tenant] = number;
}

std::string DropNumbers::Text() const {
  absl::ReaderMutexLock lock(&mu_);
  std::string text;
  for (const auto& [tenant, number] : numbers_) {
    absl::StrAppend(&text, number, " ", absl::CEscape(tenant), "\n");
  }
  return text;
}

void DropNumbers::Parse(absl::string_view text) {
  absl::MutexLock lock(&mu_);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t number = 0;
    std::string tenant;
    if (absl::SimpleAtoi(words.first, &number) && absl::CUnescape(words.second, &tenant)) {
      numbers_[tenant] = number;
    }
  }
}

}  // namespace hearth
