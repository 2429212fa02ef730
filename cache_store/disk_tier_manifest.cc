#include "cache_store/disk_tier_manifest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace hearth {
namespace {

// RocksDB's log format: blocks, in which records lie one after the other, none across an end. A
// record: masked CRC32c of type and bytes, their number (16 bits), type; little endian.
constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;
constexpr int kMostRecordTypes = 4;  // full, first, middle, last

std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kCastagnoli = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

// No library of Debian's has it that is not RocksDB's own, which keeps it to itself.
uint32_t MaskedCrc32c(absl::string_view bytes) {
  static const std::array<uint32_t, 256> table = MakeCrcTable();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

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

// The file appears whole or not at all.
absl::Status PutFile(rocksdb::FileSystem* files, const std::string& path,
                     const std::string& bytes) {
  const std::string part = absl::StrCat(path, ".mended");
  rocksdb::IOStatus status = rocksdb::WriteStringToFile(files, bytes, part, /*should_sync=*/true);
  if (status.ok()) status = files->RenameFile(part, path, rocksdb::IOOptions(), nullptr);
  if (status.ok()) return absl::OkStatus();
  files->DeleteFile(part, rocksdb::IOOptions(), nullptr).PermitUncheckedError();
  const std::string text =
      absl::StrCat(path, " is damaged and cannot be mended: ", status.ToString());
  return status.IsNoSpace() ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

// What the folder's names say.
struct Folder {
  std::optional<uint64_t> newest;  // manifest, itself or its copy
  std::vector<uint64_t> numbers;
  bool has_tables = false;
};

Folder LookAround(const std::vector<std::string>& names) {
  Folder folder;
  for (const std::string& name : names) {
    folder.has_tables |= absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".blob");
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

absl::Status MendFromCopy(rocksdb::FileSystem* files, const std::string& path,
                          std::vector<std::string>* found) {
  const std::string copy = BytesOfFile(files, path + kCopySuffix);
  if (copy.empty()) return absl::OkStatus();  // of an older version, or lost
  const std::string bytes = BytesOfFile(files, path);
  const uint64_t whole = WholeBytes(bytes), whole_of_copy = WholeBytes(copy);
  if (whole_of_copy <= whole) return absl::OkStatus();
  absl::Status put = PutFile(files, path, copy.substr(0, whole_of_copy));
  if (!put.ok()) return put;
  found->push_back(absl::StrCat(path, " was damaged after ", whole, " of ", whole_of_copy,
                                " bytes: mended from its copy, nothing is lost"));
  return absl::OkStatus();
}

}  // namespace

bool IsManifest(absl::string_view path) {
  const absl::string_view name = path.substr(path.find_last_of('/') + 1);
  return absl::StartsWith(name, kManifestPrefix) && !absl::EndsWith(name, kCopySuffix);
}

uint64_t WholeBytes(absl::string_view manifest) {
  size_t at = 0;
  while (true) {
    const size_t left_in_block = kBlockBytes - at % kBlockBytes;
    if (left_in_block < kHeaderBytes) {  // filled with zeros
      if (manifest.size() - at < left_in_block) return at;
      at += left_in_block;
      continue;
    }
    if (manifest.size() - at < kHeaderBytes) return at;
    const absl::string_view header = manifest.substr(at, kHeaderBytes);
    const size_t bytes = LittleEndian(header.substr(4, 2));
    const int type = header[6];
    if (type < 1 || type > kMostRecordTypes || kHeaderBytes + bytes > left_in_block ||
        kHeaderBytes + bytes > manifest.size() - at) {
      return at;
    }
    if (MaskedCrc32c(manifest.substr(at + 6, 1 + bytes)) != LittleEndian(header.substr(0, 4))) {
      return at;
    }
    at += kHeaderBytes + bytes;
  }
}

absl::Status MendManifest(rocksdb::FileSystem* files, const std::string& folder,
                          std::vector<std::string>* found) {
  std::vector<std::string> names;
  if (!files->GetChildren(folder, rocksdb::IOOptions(), &names, nullptr).ok()) {
    return absl::OkStatus();  // not there yet; what else is wrong RocksDB says
  }
  const Folder around = LookAround(names);
  const std::string current = BytesOfFile(files, folder + "/CURRENT");
  std::optional<uint64_t> number = NamedBy(current, around);
  if (!number.has_value()) {
    if (!around.newest.has_value()) {
      if (!around.has_tables) return absl::OkStatus();
      // RocksDB would begin a new database here, and delete what is left of this one.
      return absl::DataLossError(absl::StrCat(
          folder, " has tables but no MANIFEST that says which of them count; restore a backup"));
    }
    number = around.newest;
    absl::Status put = PutFile(files, folder + "/CURRENT", ManifestName(*number) + "\n");
    if (!put.ok()) return put;
    found->push_back(absl::StrCat(folder, "/CURRENT was damaged: mended to name ",
                                  ManifestName(*number), ", nothing is lost"));
  }
  return MendFromCopy(files, absl::StrCat(folder, "/", ManifestName(*number)), found);
}

}  // namespace hearth
