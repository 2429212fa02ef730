#include "cache_store/disk/files/rocks_status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

bool LacksResources(const rocksdb::Status& status, absl::string_view text) {
  if (status.IsNoSpace() || status.IsMemoryLimit()) return true;
  if (!status.IsIOError()) return false;
  for (const int error : {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EAGAIN}) {
    if (absl::StrContains(text, std::strerror(error))) return true;
  }
  return false;
}

}  // namespace

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(text);
  if (status.IsCorruption() || status.IsPathNotFound()) return absl::DataLossError(text);
  if (status.IsManualCompactionPaused()) return absl::CancelledError(text);
  if (LacksResources(status, text)) return absl::ResourceExhaustedError(text);
  if (status.IsInvalidArgument()) return absl::InternalError(text);
  return absl::UnavailableError(text);
}

}  // namespace hearth
