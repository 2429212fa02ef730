#include "cache_store/disk/files/disk_tier_manifest.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cache_store/disk/files/disk_tier_records.h"

namespace hearth {
namespace {

std::optional<uint64_t> NumberOf(absl::string_view name) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&name, kManifestPrefix)) return std::nullopt;
  absl::ConsumeSuffix(&name, kCopySuffix);
  if (name.empty() || !absl::SimpleAtoi(name, &number)) return std::nullopt;
  return number;
}

// Empty when it cannot be read.
std::string BytesOfFile(rocksdb::FileSystem* files, const std::string& path) {
  std::string bytes;
  if (!rocksdb::ReadFileToString(files, path, &bytes).ok()) bytes.clear();
  return bytes;
}

// The names in the folder.
struct Folder {
  std::optional<uint64_t> newest;  // manifest, itself or its copy
  std::vector<uint64_t> numbers;
  bool has_data = false;
};

Folder LookAround(const std::vector<std::string>& names) {
  Folder folder;
  for (const std::string& name : names) {
    folder.has_data |= absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".blob") ||
                       absl::EndsWith(name, ".log");
    const std::optional<uint64_t> number = NumberOf(name);
    if (!number.has_value()) continue;
    folder.numbers.push_back(*number);
    folder.newest = std::max(folder.newest.value_or(0), *number);
  }
  return folder;
}

std::string ManifestName(uint64_t number) {
  std::string digits = absl::StrCat(number);
  digits.insert(0, 6 - std::min<size_t>(6, digits.size()), '0');
  return absl::StrCat(kManifestPrefix, digits);
}

// The number that CURRENT names, if it is that of a manifest that is there.
std::optional<uint64_t> NamedBy(absl::string_view current, const Folder& folder) {
  if (!absl::ConsumeSuffix(&current, "\n")) return std::nullopt;
  const std::optional<uint64_t> number = NumberOf(current);
  if (!number.has_value() || current != ManifestName(*number)) return std::nullopt;
  const bool is_there =
      std::find(folder.numbers.begin(), folder.numbers.end(), *number) != folder.numbers.end();
  return is_there ? number : std::nullopt;
}

// The file that is there is damaged.
absl::Status PutInPlaceOf(rocksdb::FileSystem* files, const std::string& path,
                          const std::string& bytes) {
  const absl::Status put = PutFile(files, path, bytes);
  if (put.ok()) return put;
  return absl::Status(put.code(),
                      absl::StrCat(path, " is damaged and cannot be mended: ", put.message()));
}

absl::Status MendFromCopy(rocksdb::FileSystem* files, const std::string& path, FoundDamage* found) {
  const std::string copy = BytesOfFile(files, path + kCopySuffix);
  if (copy.empty()) return absl::OkStatus();  // of an older version, or lost
  const std::string bytes = BytesOfFile(files, path);
  const uint64_t whole = WholeBytes(bytes), whole_of_copy = WholeBytes(copy);
  if (whole_of_copy <= whole) return absl::OkStatus();
  absl::Status put = PutInPlaceOf(files, path, copy.substr(0, whole_of_copy));
  if (!put.ok()) return put;
  found->AddMended(absl::StrCat(path, " was damaged after ", whole, " of ", whole_of_copy,
                                " bytes: mended from its copy, nothing is lost"));
  return absl::OkStatus();
}

}  // namespace

bool IsManifest(absl::string_view path) {
  const absl::string_view name = path.substr(path.find_last_of('/') + 1);
  return absl::StartsWith(name, kManifestPrefix) && !absl::EndsWith(name, kCopySuffix);
}

absl::Status PutFile(rocksdb::FileSystem* files, const std::string& path,
                     const std::string& bytes) {
  const std::string part = absl::StrCat(path, ".mended");
  rocksdb::IOStatus status = rocksdb::WriteStringToFile(files, bytes, part, /*should_sync=*/true);
  if (status.ok()) status = files->RenameFile(part, path, kPlain, nullptr);
  if (status.ok()) return absl::OkStatus();
  files->DeleteFile(part, kPlain, nullptr).PermitUncheckedError();
  return FromRocks(status, absl::StrCat("write of ", path));
}

absl::Status MendManifest(rocksdb::FileSystem* files, const std::string& folder,
                          FoundDamage* found) {
  std::vector<std::string> names;
  if (!files->GetChildren(folder, kPlain, &names, nullptr).ok()) {
    return absl::OkStatus();  // not there yet; what else is wrong RocksDB says
  }
  const Folder around = LookAround(names);
  const std::string current = BytesOfFile(files, folder + "/CURRENT");
  std::optional<uint64_t> number = NamedBy(current, around);
  if (!number.has_value()) {
    if (!around.newest.has_value()) {
      if (!around.has_data) return absl::OkStatus();
      // RocksDB would begin a new database here, and delete what is left of this one.
      return absl::DataLossError(absl::StrCat(
          folder, " has tables or logs but no MANIFEST that says which of them count"));
    }
    number = around.newest;
    absl::Status put = PutInPlaceOf(files, folder + "/CURRENT", ManifestName(*number) + "\n");
    if (!put.ok()) return put;
    found->AddMended(absl::StrCat(folder, "/CURRENT was damaged: mended to name ",
                                  ManifestName(*number), ", nothing is lost"));
  }
  return MendFromCopy(files, absl::StrCat(folder, "/", ManifestName(*number)), found);
}

}  // namespace hearth
